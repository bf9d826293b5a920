package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
)

// shutdownAccepted is the result of shutdown --json: the process has agreed to end.
type shutdownAccepted struct {
	Address string `json:"address"`
}

func newShutdown(s cli.Streams) *cobra.Command {
	timeout, asJSON := askTimeout, false
	cmd := &cobra.Command{
		Use:   "shutdown ADDRESS",
		Short: "Ask a running process to shut its engine down",
		Long: `shutdown asks the process at ADDRESS, such as ofi+tcp://10.0.0.1:1234, to end: it stops
taking requests, finishes those that it has, and closes. A Go process obeys if its engine
has Config.AllowRemoteShutdown, a C process if it has called margo_enable_remote_shutdown.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAt(cmd.Context(), args[0], timeout, func(ctx context.Context, ep *cinnabar.Endpoint) error {
				if err := ep.Shutdown(ctx); err != nil {
					return err
				}
				if asJSON {
					return cli.WriteJSON(s.Out, shutdownAccepted{ep.String()})
				}
				_, err := fmt.Fprintf(s.Out, "%v shuts down\n", ep)
				return err
			})
		},
	}
	cli.JSONFlag(cmd.Flags(), &asJSON)
	cli.TimeoutFlag(cmd.Flags(), &timeout, askTimeout, "how long to wait for the answer")
	return cmd
}
