package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Options that several commands have are registered here, so that name, letter and meaning are the same everywhere. The
// commands that stand in for programs of rdma-core keep the letters of those programs: there an option whose letter is
// taken has none.

// jsonFlag adds --json: results are printed for programs.
func jsonFlag(f *pflag.FlagSet, to *bool) {
	letter := "j"
	if f.ShorthandLookup(letter) != nil {
		letter = ""
	}
	f.BoolVarP(to, "json", letter, false, "print results as JSON")
}

// timeoutFlag adds --timeout with the meaning that the command gives it.
func timeoutFlag(f *pflag.FlagSet, to *time.Duration, value time.Duration, meaning string) {
	f.DurationVarP(to, "timeout", "t", value, meaning)
}

// deviceFlag adds --device to a command. The rule is the same for all: without it the software device is used, also
// where the machine has others, because a command line should mean the same on each machine.
func deviceFlag(f *pflag.FlagSet, to *string) {
	deviceFlagFor(f, to, "RDMA device, one of those that cinnabar devices lists (default "+softwareDevice+", the software device)")
}

// deviceFlagFor adds --device to a command that has another default.
func deviceFlagFor(f *pflag.FlagSet, to *string, meaning string) {
	letter := "d"
	if f.ShorthandLookup(letter) != nil {
		letter = ""
	}
	f.StringVarP(to, "device", letter, "", meaning)
}

// ibDevFlag gives a command that stands in for one of rdma-core's the name that --device has there.
func ibDevFlag(f *pflag.FlagSet) {
	f.AddFlag(&pflag.Flag{Name: "ib-dev", Usage: "the same as --device", Value: f.Lookup("device").Value, Hidden: true})
}

// complete makes shells complete the values of options: with fixed words, the names of devices, or directories.
func complete(cmd *cobra.Command) {
	for option, words := range optionWords {
		if cmd.Flags().Lookup(option) != nil {
			mustComplete(cmd.RegisterFlagCompletionFunc(option, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	if cmd.Flags().Lookup("device") != nil {
		mustComplete(cmd.RegisterFlagCompletionFunc("device", completeDevice))
	}
	if cmd.Flags().Lookup("dir") != nil {
		mustComplete(cmd.MarkFlagDirname("dir"))
	}
}

// optionWords are the values of options that are words.
var optionWords = map[string][]string{
	"protocol":  {"auto", "fast", "basic"},
	"digest":    {"sha256", "none"},
	"transport": {"rc", "uc", "ud"},
	"op":        {"write", "write-imm", "read", "send", "atomic"},
}

// completeDevice completes the name of a device.
func completeDevice(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	for _, e := range deviceList(cmd.Context()) {
		names = append(names, e.name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// mustComplete panics because only a flag that does not exist, or has a completion, makes an error.
func mustComplete(err error) {
	if err != nil {
		panic(err)
	}
}
