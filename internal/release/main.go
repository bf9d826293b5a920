// Command release builds the archives of a release: static binaries of cmd/cinnabar for each system, manual pages, completion scripts, service
// files, lists of the modules in each binary (SBOM in CycloneDX's JSON), and SHA256SUMS.
//
//	go run ./internal/release -out dist
//
// Two runs on one commit give equal files, because nothing in a file depends on the directory, the user, the time of the run or the order of
// folders: times are those of the commit, or SOURCE_DATE_EPOCH of the environment. It needs no network once the modules are in the cache.
package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// defaultPlatforms are the systems that a release is for. The RDMA devices of a machine need Linux and a build with cgo; all else is in pure Go.
const defaultPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64"

// platform is an operating system and a processor.
type platform struct{ os, arch string }

// host is the platform of this program.
var host = platform{runtime.GOOS, runtime.GOARCH}

// parsePlatforms reads a list such as linux/amd64,darwin/arm64.
func parsePlatforms(text string) ([]platform, error) {
	var list []platform
	for part := range strings.SplitSeq(text, ",") {
		p := platform{}
		var ok bool
		if p.os, p.arch, ok = strings.Cut(part, "/"); !ok || !plainWord(p.os) || !plainWord(p.arch) {
			return nil, fmt.Errorf("-platforms: %q is not OS/ARCH, such as linux/amd64", part)
		}
		if slices.Contains(list, p) {
			return nil, fmt.Errorf("-platforms: %s is there twice", part)
		}
		list = append(list, p)
	}
	return list, nil
}

// plainWord reports whether text has letters and digits alone.
func plainWord(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// release is one run.
type release struct {
	out    string // directory for the results
	work   string // directory that the run removes
	stamp  bool   // the binaries have the version of the commit
	time   time.Time
	stderr io.Writer
}

func run(ctx context.Context, args []string, stderr io.Writer) (err error) {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.SetOutput(stderr)
	out := f.String("out", "dist", "directory for the results")
	text := f.String("platforms", defaultPlatforms, "systems, separated by commas")
	if err := f.Parse(args); err != nil {
		return err
	}
	platforms, err := parsePlatforms(*text)
	if err != nil {
		return err
	}
	r := &release{out: *out, stderr: stderr}
	if r.work, err = os.MkdirTemp("", "release"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	if err := r.findCommit(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o777); err != nil {
		return err
	}
	return r.build(ctx, platforms)
}

// findCommit sets the time of the release, and whether git can name the commit.
func (r *release) findCommit(ctx context.Context) error {
	seconds, err := command(ctx, "git", "log", "-1", "--format=%ct")
	r.stamp = err == nil
	if !r.stamp {
		r.notef("git does not name the commit, so the version is devel: %v", err)
	}
	text := cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), strings.TrimSpace(string(seconds)), "0")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<32 {
		return fmt.Errorf("SOURCE_DATE_EPOCH=%q is no number of seconds from 0 to %d", text, int64(1<<32))
	}
	r.time = time.Unix(max(n, 315532800), 0).UTC() // 1980, because archives of zip have no earlier time
	return nil
}

func (r *release) notef(format string, args ...any) {
	_, _ = fmt.Fprintf(r.stderr, "release: "+format+"\n", args...) // there is no other place for the error
}

// build builds all platforms, the archives, and SHA256SUMS.
func (r *release) build(ctx context.Context, platforms []platform) error {
	shared, err := r.sharedFiles(ctx)
	if err != nil {
		return err
	}
	var results []string
	for _, p := range platforms {
		names, err := r.buildFor(ctx, p, shared)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
		results = append(results, names...)
	}
	return r.writeSums(results)
}

// compile builds the command for a platform and returns the name of the binary. Its bytes depend on the sources and on the version of Go alone.
func (r *release) compile(ctx context.Context, p platform) (string, error) {
	binary := filepath.Join(r.work, p.os+"-"+p.arch, "cinnabar")
	if p.os == "windows" {
		binary += ".exe"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", fmt.Sprintf("-buildvcs=%v", r.stamp), "-ldflags=-s -w -buildid=", "-o", binary, "./cmd/cinnabar")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=")
	cmd.Stderr = r.stderr
	return binary, cmd.Run()
}

// buildFor builds the archive of a platform and the list of its modules, and returns their names.
func (r *release) buildFor(ctx context.Context, p platform, shared []entry) ([]string, error) {
	binary, err := r.compile(ctx, p)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	title := fmt.Sprintf("cinnabar-%s-%s-%s", versionOf(info), p.os, p.arch)
	list, err := sbom(info, p, data, r.time)
	if err != nil {
		return nil, err
	}
	entries := append([]entry{{name: filepath.Base(binary), data: data, executable: true}, {name: "sbom.cdx.json", data: list}}, forPlatform(shared, p)...)
	archive, pack := title+".tar.gz", packTar
	if p.os == "windows" {
		archive, pack = title+".zip", packZip
	}
	var b bytes.Buffer
	if err := pack(&b, title, entries, r.time); err != nil {
		return nil, err
	}
	r.notef("%s: %d bytes", archive, b.Len())
	return []string{archive, title + ".cdx.json"}, errors.Join(r.write(archive, b.Bytes()), r.write(title+".cdx.json", list))
}

// write writes one result, whole or not at all.
func (r *release) write(name string, data []byte) error {
	part := filepath.Join(r.out, "."+name+".part")
	if err := os.WriteFile(part, data, 0o666); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(r.out, name))
}

// sharedFiles returns the files that archives have beside the binary: texts of the repository, and those that the command itself prints.
func (r *release) sharedFiles(ctx context.Context) ([]entry, error) {
	var list []entry
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		list = append(list, entry{name: name, data: data})
	}
	units, err := readDir("contrib/systemd", "lib/systemd/system")
	if err != nil {
		return nil, err
	}
	binary, err := r.compile(ctx, host)
	if err != nil {
		return nil, err
	}
	pages := filepath.Join(r.work, "man1")
	man := exec.CommandContext(ctx, binary, "man", "--dir", pages)
	man.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.time.Unix(), 10))
	man.Stderr = r.stderr
	if err := man.Run(); err != nil {
		return nil, fmt.Errorf("write the manual pages: %w", err)
	}
	manual, err := readDir(pages, "share/man/man1")
	if err != nil {
		return nil, err
	}
	list = append(append(list, units...), manual...)
	for _, c := range []struct{ shell, name string }{
		{"bash", "share/bash-completion/completions/cinnabar"}, {"zsh", "share/zsh/site-functions/_cinnabar"}, {"fish", "share/fish/vendor_completions.d/cinnabar.fish"},
	} {
		data, err := command(ctx, binary, "completion", c.shell)
		if err != nil {
			return nil, err
		}
		list = append(list, entry{name: c.name, data: data})
	}
	return list, nil
}

// forPlatform leaves out the files that a platform has no use for.
func forPlatform(list []entry, p platform) []entry {
	return slices.DeleteFunc(slices.Clone(list), func(e entry) bool {
		return p.os != "linux" && strings.HasPrefix(e.name, "lib/systemd/") || p.os == "windows" && strings.HasPrefix(e.name, "share/")
	})
}

// readDir returns the files of a directory that are units or manual pages, under another directory.
func readDir(dir, under string) ([]entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []entry
	for _, f := range files {
		if !slices.Contains([]string{".service", ".socket", ".1"}, filepath.Ext(f.Name())) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, entry{name: under + "/" + f.Name(), data: data})
	}
	return list, nil
}

// command runs a program and returns its output. The error has the text that the program printed.
func command(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
