package cli

import (
	"cinnabar"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// This file registers the options that several commands have, so that name, letter and meaning are the same everywhere. pingpong,
// rping and devices keep the letters of the programs of rdma-core after which they are made: an option with a letter that is taken there
// has no letter.

// JSONFlag adds --json, which prints results as JSON.
func JSONFlag(f *pflag.FlagSet, to *bool) {
	letter := "j"
	if f.ShorthandLookup(letter) != nil {
		letter = ""
	}
	f.BoolVarP(to, "json", letter, false, "print results as JSON")
}

// TimeoutFlag adds --timeout, with -t unless the command has another option with that letter. meaning is the help text.
func TimeoutFlag(f *pflag.FlagSet, to *time.Duration, value time.Duration, meaning string) {
	letter := "t"
	if f.ShorthandLookup(letter) != nil {
		letter = ""
	}
	f.DurationVarP(to, "timeout", letter, value, meaning)
}

// DeviceFlag adds --device to a command. Without the option each command uses the software device, even if the machine has others,
// because a command line should mean the same on each machine.
func DeviceFlag(f *pflag.FlagSet, to *string) {
	DeviceFlagFor(f, to, "RDMA device, one of those that cinnabar devices lists (default "+SoftwareDevice+", the software device)")
}

// DeviceFlagFor adds --device to a command that has another default.
func DeviceFlagFor(f *pflag.FlagSet, to *string, meaning string) {
	letter := "d"
	if f.ShorthandLookup(letter) != nil {
		letter = ""
	}
	f.StringVarP(to, "device", letter, "", meaning)
}

// IBDevFlag adds --ib-dev, rdma-core's name for --device.
func IBDevFlag(f *pflag.FlagSet) {
	f.AddFlag(&pflag.Flag{Name: "ib-dev", Usage: "the same as --device", Value: f.Lookup("device").Value, Hidden: true})
}

// complete registers the values with which shells complete the options of a command: fixed words, names of devices, directories.
func complete(cmd *cobra.Command) {
	for option, words := range optionWords {
		if f := cmd.Flags().Lookup(option); f != nil && f.DefValue != "any" {
			mustComplete(cmd.RegisterFlagCompletionFunc(option, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	if cmd.Flags().Lookup("device") != nil {
		mustComplete(cmd.RegisterFlagCompletionFunc("device", completeDevice))
	}
	if cmd.Flags().Lookup("dir") != nil {
		mustComplete(cmd.MarkFlagDirname("dir"))
	}
	if f := cmd.Flags().Lookup("digest"); f != nil && f.DefValue == "any" { // of recv
		words := append([]string{"any"}, optionWords["digest"]...)
		mustComplete(cmd.RegisterFlagCompletionFunc("digest", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
	}
	completeSecurity(cmd)
	completeArguments(cmd)
	completeNoFiles(cmd)
}

// optionWords are the values of the options that take one of a few words.
var optionWords = map[string][]string{
	"protocol":  {"auto", "fast", "basic"},
	"digest":    {"sha256", "blake3", "none"}, // and any, the default of recv
	"transport": {"rc", "uc", "ud"},
	"mtu":       {"256", "512", "1024", "2048", "4096"},
	"op":        {"write", "write-imm", "read", "send", "atomic"},
}

// completeDevice completes the name of a device.
func completeDevice(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	if _, ok := cmd.Flags().Lookup("device").Annotations[engineDevice]; ok {
		names = append(names, softwareWord)
	}
	for _, e := range Devices(cmd.Context()) {
		names = append(names, e.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// mustComplete panics on an error, because only a flag that does not exist or already has a completion causes one.
func mustComplete(err error) {
	if err != nil {
		panic(err)
	}
}

// ParseName finds the value that is called text.
func ParseName[T fmt.Stringer](option, text string, values ...T) (T, error) {
	var names string
	for n, v := range values {
		if v.String() == text {
			return v, nil
		}
		if n > 0 {
			names += ", "
		}
		names += v.String()
	}
	return values[0], Usagef("invalid %s %q: one of %s", option, text, names)
}

// EngineLimits bound the memory and the connections that peers may make a server's engine hold.
type EngineLimits struct {
	memoryText  string
	connections int
}

// Register adds the options to a command.
func (l *EngineLimits) Register(f *pflag.FlagSet) {
	f.StringVar(&l.memoryText, "max-memory", "", "memory that all peers together may make the server hold (default half of the machine's, see cinnabar info)")
	f.IntVar(&l.connections, "max-connections", 0, "connections of all peers together, of which one host gets a part (default see cinnabar info)")
}

// Config returns the configuration of the engine. The engine refuses limits that are too small.
func (l *EngineLimits) Config() (*cinnabar.Config, error) {
	cfg := &cinnabar.Config{MaxConnections: l.connections}
	if l.connections < 0 {
		return nil, Usagef("invalid --max-connections %d: it is positive, or 0 for the default", l.connections)
	}
	if l.memoryText != "" {
		n, err := ParseSize("--max-memory", l.memoryText, 1, math.MaxInt64/2)
		if err != nil {
			return nil, err
		}
		cfg.MaxMemory = n
	}
	return cfg, nil
}
