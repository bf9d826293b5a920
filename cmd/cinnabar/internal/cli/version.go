package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"cinnabar/margo"
)

// buildVersion describes the build. version --json prints it.
type buildVersion struct {
	Version  string `json:"version"`          // of the module
	Commit   string `json:"commit,omitempty"` // empty if the build has no version control information
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Mercury  int    `json:"mercury_protocol"` // version of the headers on the wire
}

// thisVersion returns the version of this program.
func thisVersion() buildVersion {
	v := buildVersion{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Mercury: margo.MercuryProtocol}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}

// pseudoCommit is the number of digits of the commit in a pseudo-version of Go.
const pseudoCommit = 12

// String returns the version as one line. It leaves the commit out if the version is a pseudo-version, which contains its start.
func (v buildVersion) String() string {
	commit := ""
	if len(v.Commit) >= pseudoCommit && !strings.Contains(v.Version, v.Commit[:pseudoCommit]) {
		commit = " " + v.Commit
	}
	return fmt.Sprintf("%s%s %s %s, Mercury protocol %d", v.Version, commit, v.Go, v.Platform, v.Mercury)
}

func newVersion(s Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of the program and of the wire it speaks",
		Example: "  cinnabar version\n  cinnabar version --json",
		Args:    NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return WriteJSON(s.Out, thisVersion())
			}
			_, err := fmt.Fprintf(s.Out, "%s version %s\n", cmd.Root().Name(), thisVersion())
			return err
		},
	}
	JSONFlag(cmd.Flags(), &asJSON)
	return cmd
}
