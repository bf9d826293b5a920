package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// protocols are the protocols of addresses, with their descriptions.
var protocols = []struct{ name, about string }{
	{"ofi+tcp", "TCP"},
	{"ofi+tcps", "TCP inside TLS"},
	{"ofi+verbs", "an RDMA device"},
	{"na+sm", "shared memory of this host"},
}

// completeArguments completes the arguments of a command by the words of its usage: protocols for ADDRESS, names of files for FILE, and nothing for
// others, because names of files would be wrong there.
func completeArguments(cmd *cobra.Command) {
	if cmd.HasSubCommands() || cmd.ValidArgsFunction != nil || len(cmd.ValidArgs) > 0 || cmd.Name() == "help" {
		return
	}
	words := strings.Fields(cmd.Use)[1:]
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch argumentWord(words, len(args)) {
		case "ADDRESS":
			return protocolCompletions("://"), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		case "CLASS+PROTOCOL":
			return protocolCompletions(""), cobra.ShellCompDirectiveNoFileComp
		case "FILE":
			return nil, cobra.ShellCompDirectiveDefault
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// argumentWord returns the word for argument n of a usage, without its brackets and dots, "" if the usage has none. A word with dots stands for
// any number of arguments, so it counts for the words behind it too.
func argumentWord(words []string, n int) string {
	for i, word := range words {
		if many := strings.Contains(word, "..."); many || i == n {
			return strings.Trim(word, "[].")
		}
	}
	return ""
}

// protocolCompletions returns the protocols, each followed by suffix.
func protocolCompletions(suffix string) []cobra.Completion {
	list := make([]cobra.Completion, len(protocols))
	for i, p := range protocols {
		list[i] = cobra.CompletionWithDesc(p.name+suffix, p.about)
	}
	return list
}

// fileOptions are the options with names of files, beside those of Security.
var fileOptions = []string{"port-file", "output", "log", "bulk-in", "bulk-out"}

// completeNoFiles completes nothing for the options of a command that have no completion and take no names of files: shells complete those otherwise.
func completeNoFiles(cmd *cobra.Command) {
	files := map[string]bool{}
	for _, name := range append(fileOptions, securityOptions...) {
		files[name] = true
	}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		_, has := cmd.GetFlagCompletionFunc(f.Name)
		if has || files[f.Name] || len(f.Annotations) > 0 || f.NoOptDefVal != "" {
			return
		}
		mustComplete(cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions))
	})
}
