package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar"
	"cinnabar/identity"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Security has the options by which a command and its peers authenticate each other: --token-file and those of TLS.
type Security struct {
	token   string
	files   identity.Files
	s       Streams
	reloads bool // at SIGHUP
}

// errNoCertificate is the error of a server with TLS that has no certificate.
var errNoCertificate = errors.New("a server with TLS needs a certificate: give --tls-cert and --tls-key")

// securityOptions are the names of the options.
var securityOptions = []string{"token-file", "tls-cert", "tls-key", "tls-ca", "tls-name"}

// Register adds the options to a command.
func (o *Security) Register(f *pflag.FlagSet, s Streams) {
	o.s = s
	f.StringVar(&o.token, "token-file", "", "file with the token that both ends prove to each other, see cinnabar token new (default none)")
	f.StringVar(&o.files.Certificate, "tls-cert", "", "file with the certificate of this process in PEM, for an ADDRESS of ofi+tcps")
	f.StringVar(&o.files.Key, "tls-key", "", "file with the private key of --tls-cert in PEM")
	f.StringVar(&o.files.Authorities, "tls-ca", "", "file with the authorities of the peers' certificates in PEM; a server then requires certificates (default those of the system)")
	f.StringVar(&o.files.ServerName, "tls-name", "", "name in the certificate of the server (default the host in ADDRESS)")
}

// RegisterDevice adds the options to a command that opens an RDMA device for itself. TLS is in use if one of the options of TLS is given.
func (o *Security) RegisterDevice(f *pflag.FlagSet, s Streams) {
	o.Register(f, s)
	f.Lookup("token-file").Usage = "file with the token that both ends prove to each other over the software device, see cinnabar token new (default none)"
	f.Lookup("tls-cert").Usage = "file with the certificate of this process in PEM. Each --tls option turns TLS on, which both ends need"
	f.Lookup("tls-name").Usage = "name in the certificate of the server (default the server's host name or address as given)"
}

// Reload has the certificates of a server read again at each SIGHUP.
func (o *Security) Reload() { o.reloads = true }

// OpenDevice opens the RDMA device of that name, or the software device if name is empty. The software device gets the token and the TLS
// configuration of the options, and other settings by edit, unless that is nil. host is the server that a client dials, as the user has
// named it, and empty for a server. The caller calls stop after it has closed the device.
func (o *Security) OpenDevice(ctx context.Context, name, host string, edit func(*iwarp.Config)) (dev *verbs.Device, stop func(), err error) {
	stop = func() {}
	overTLS := o.files != (identity.Files{})
	if name != "" && name != SoftwareDevice {
		if o.token != "" || overTLS {
			return nil, nil, Usagef("--token-file and the --tls options are for %s, not for --device %s", SoftwareDevice, name)
		}
		dev, err = OpenDevice(ctx, name)
		return dev, stop, err
	}
	cfg := softwareConfig(ctx)
	if edit != nil {
		edit(&cfg)
	}
	if o.token != "" {
		if cfg.Token, err = identity.ReadToken(o.token); err != nil {
			return nil, nil, err
		}
	}
	if overTLS {
		files := o.files
		if _, err := netip.ParseAddr(host); files.ServerName == "" && host != "" && err != nil {
			files.ServerName = host // because the device sees its address alone
		}
		certs, err := identity.LoadCertificates(files)
		if err != nil {
			return nil, nil, err
		}
		if host == "" && files.Certificate == "" {
			return nil, nil, Usagef("%w", errNoCertificate)
		}
		cfg.TLS, cfg.DialTLS = certs.Config(), certs.Dial
		if o.reloads {
			stop = onHangup(func() { o.reload(LoggerOf(ctx), certs) })
		}
	}
	if dev, err = iwarp.Open(cfg); err != nil {
		stop()
		return nil, nil, fmt.Errorf("open device %s: %w", SoftwareDevice, err)
	}
	return dev, stop, nil
}

// OverTLS reports whether an engine at address needs a TLS configuration.
func OverTLS(address string) bool {
	protocol, _, _ := strings.Cut(address, ":")
	return protocol == "ofi+tcps" || protocol == "tcps"
}

// Apply sets the fields of cfg for an engine at address. The certificates of a server are read again at each SIGHUP, until the caller calls stop.
func (o *Security) Apply(ctx context.Context, address string, cfg *cinnabar.Config) (stop func(), err error) {
	stop = func() {}
	if o.token != "" {
		t, err := identity.ReadToken(o.token)
		if err != nil {
			return stop, err
		}
		cfg.Token = t
	}
	if !OverTLS(address) {
		if o.files != (identity.Files{}) {
			return stop, Usagef("--tls-cert, --tls-key, --tls-ca and --tls-name were given for %s, which has no TLS; use ofi+tcps", address)
		}
		return stop, nil
	}
	if o.reloads && o.files.Certificate == "" {
		return stop, Usagef("%w", errNoCertificate)
	}
	certs, err := identity.LoadCertificates(o.files)
	if err != nil {
		return stop, err
	}
	cfg.TLS, cfg.DialTLS = certs.Config(), certs.Dial
	if o.reloads {
		stop = onHangup(func() { o.reload(LoggerOf(ctx), certs) })
	}
	return stop, nil
}

// reload reads the certificates again.
func (o *Security) reload(log *slog.Logger, certs *identity.Certificates) {
	if err := certs.Reload(); err != nil {
		o.s.Notef("warning: the certificates were not reloaded, and the old ones stay in use: %v\n", err)
	} else if log != nil {
		log.Info("certificates reloaded", "certificate", o.files.Certificate, "authorities", o.files.Authorities)
	}
}

// onHangup calls f at each SIGHUP, until the caller calls stop.
func onHangup(f func()) (stop func()) {
	signals, end, ended := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		defer close(ended)
		for {
			select {
			case <-signals:
				f()
			case <-end:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(end)
		<-ended
	}
}

// completeSecurity registers the completion of the options: names of files, except for --tls-name.
func completeSecurity(cmd *cobra.Command) {
	for _, option := range securityOptions {
		if cmd.Flags().Lookup(option) == nil {
			continue
		}
		if option == "tls-name" {
			mustComplete(cmd.RegisterFlagCompletionFunc(option, cobra.NoFileCompletions))
			continue
		}
		mustComplete(cmd.MarkFlagFilename(option))
	}
}

// NewToken returns the command token.
func NewToken(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make tokens, by which processes authenticate each other",
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "new",
		Short: "Print a new token",
		Long: `new prints a token of 256 random bits. Processes with the same token prove it to each other
by --token-file, or Config.Token, and refuse all others. Keep it in a file that only its user
can read, and copy that file to the other hosts over an encrypted connection, such as scp.`,
		Example: "  (umask 077; cinnabar token new >token)\n  cinnabar perf serve --token-file token tcp",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(s.Out, identity.NewToken().Reveal())
			return err
		},
	})
	return cmd
}
