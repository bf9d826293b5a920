// Command report draws charts of the figures that bench/rpc or bench/files has recorded.
//
//	go run ./bench/rpc -curves -json bench/results/NAME.json > bench/results/NAME.txt
//	go run ./bench/report [-out DIR] bench/results/NAME.json
//
// It writes an SVG file for each chart into DIR, bench/results/charts by default, and prints the names: the time of a call and the bandwidth of a transfer
// over its size, the 99th percentile beside a busy process, the cost of a call over the number of clients, and the rate of copies of files. Points are medians over the rounds; the line through
// each reaches from the lowest round to the highest one. A chart for which the file has no figures is not written, and named.
//
// Axes have logarithmic scales. The files follow the reader's choice of dark or light colours, and are the same, byte for byte, for the same input.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cinnabar/bench/internal/record"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	flags.SetOutput(out)
	dir := flags.String("out", filepath.Join("bench", "results", "charts"), "folder of the charts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("usage: report [-out DIR] FILE, where bench/rpc -json or bench/files -json has written FILE")
	}
	name := flags.Arg(0)
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was read
	file, err := record.Read(name, f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	for _, c := range charts(file, filepath.ToSlash(name)) {
		if c.empty() {
			if _, err := fmt.Fprintf(out, "%s: not written, because %s has no figures for it\n", c.file, name); err != nil {
				return err
			}
			continue
		}
		var b bytes.Buffer
		if err := c.draw(&b); err != nil {
			return fmt.Errorf("%s: %s: %w", name, c.file, err)
		}
		to := filepath.Join(*dir, c.file)
		if err := os.WriteFile(to, b.Bytes(), 0o644); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, to); err != nil {
			return err
		}
	}
	return nil
}
