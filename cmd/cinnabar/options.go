package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// This file registers the options that several commands have, so that name, letter and meaning are the same everywhere. pingpong,
// rping and devices keep the letters of the programs of rdma-core after which they are made: an option whose letter is taken there
// has no letter.

// jsonFlag adds --json, which prints results as JSON.
func jsonFlag(f *pflag.FlagSet, to *bool) {
	letter := "j"
	if f.ShorthandLookup(letter) != nil {
		letter = ""
	}
	f.BoolVarP(to, "json", letter, false, "print results as JSON")
}

// timeoutFlag adds --timeout with a default value and with the help text of the command.
func timeoutFlag(f *pflag.FlagSet, to *time.Duration, value time.Duration, meaning string) {
	f.DurationVarP(to, "timeout", "t", value, meaning)
}

// deviceFlag adds --device to a command. Without the option each command uses the software device, even if the machine has others,
// because a command line should mean the same on each machine.
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

// ibDevFlag adds --ib-dev, rdma-core's name for --device.
func ibDevFlag(f *pflag.FlagSet) {
	f.AddFlag(&pflag.Flag{Name: "ib-dev", Usage: "the same as --device", Value: f.Lookup("device").Value, Hidden: true})
}

// complete registers the values with which shells complete the options of a command: fixed words, names of devices, directories.
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

// optionWords are the values of the options that take one of a few words.
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

// mustComplete panics on an error, because only a flag that does not exist or already has a completion causes one.
func mustComplete(err error) {
	if err != nil {
		panic(err)
	}
}
