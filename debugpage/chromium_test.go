package debugpage

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cinnabar"
)

// chromiumTime bounds one run of the browser.
const chromiumTime = time.Minute

// loaded opens a server with requests that run and wait, pools, memory and connections, and makes calls of several latencies.
func loaded(t *testing.T, page *Page) {
	t.Helper()
	server := engine(t, page, cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "io", Workers: 2}, {Name: "compute", Workers: 1}}})
	client := engine(t, page, cinnabar.Config{})
	held := make(chan struct{})
	block := cinnabar.NewRPC[struct{}, struct{}]("render_frame")
	must(t, block.Handle(server, func(context.Context, struct{}) (struct{}, error) { <-held; return struct{}{}, nil }, cinnabar.WithPool(server.LookupPool("compute"))))
	half := cinnabar.NewRPC[int32, int32]("half")
	must(t, half.Handle(server, func(_ context.Context, n int32) (int32, error) { return n / 2, nil }))
	ep, err := client.Lookup(server.Addr())
	must(t, err)
	var waiting []*cinnabar.Pending[struct{}]
	for range 4 {
		waiting = append(waiting, block.Start(context.Background(), ep, struct{}{}))
	}
	for n := range int32(200) {
		_, err := half.Call(t.Context(), ep, n)
		must(t, err)
	}
	for i := range 6 {
		_, err := server.Alloc(cinnabar.ReadWrite, int64(i+1)<<20)
		must(t, err)
	}
	for i := range 2000 {
		page.mon.server.of("checkpoint_write").observe(time.Duration(200+i*i/500) * time.Microsecond)
	}
	page.mon.server.of(strings.Repeat("a_name_without_a_space_", 8)).observe(time.Second)
	t.Cleanup(func() {
		close(held)
		for _, w := range waiting {
			if _, err := w.Wait(); err != nil {
				t.Error(err)
			}
		}
	})
}

// browse loads a page in a browser without a window, and returns its picture and the messages of its console.
func browse(t *testing.T, path, url string, size image.Point, dark bool) (picture image.Image, console string) {
	t.Helper()
	name := filepath.Join(t.ArtifactDir(), strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestInChromium/"), "/", "-")+".png")
	scheme := 1
	if dark {
		scheme = 0
	}
	ctx, cancel := context.WithTimeout(t.Context(), chromiumTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
		"--enable-logging=stderr", "--user-data-dir="+t.TempDir(), fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme),
		fmt.Sprintf("--window-size=%d,%d", size.X, size.Y), "--screenshot="+name, url)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	for line := range strings.Lines(stderr.String()) {
		if strings.Contains(line, ":CONSOLE") {
			console += line
		}
	}
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	picture, err = png.Decode(f)
	must(t, err)
	return picture, console
}

// TestInChromium shows the page in light and dark, wide and narrow, idle and loaded. The flag -artifacts of go test keeps the pictures. The console has no
// message, such as one of a style that the page's own policy refuses. No text is cut at the right edge, and the whole width has the color of the background.
func TestInChromium(t *testing.T) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("Debian's package chromium is not installed")
	}
	idle, busy := New(&Config{Refresh: -1}), New(&Config{Refresh: -1})
	engine(t, idle, cinnabar.Config{})
	loaded(t, busy)
	for _, state := range []struct {
		name string
		page *Page
		view string
	}{{"idle", idle, ""}, {"loaded", busy, ""}, {"loaded-calls", busy, "calls"}, {"loaded-latency", busy, "latency"}, {"loaded-peers", busy, "peers"}, {"loaded-memory", busy, "memory"}} {
		web := httptest.NewServer(state.page)
		defer web.Close()
		for width, size := range map[string]image.Point{"wide": {1280, 900}, "narrow": {500, 900}} {
			for theme, colors := range themes {
				if state.view != "" && theme == "dark" && width == "narrow" {
					continue
				}
				t.Run(state.name+"-"+width+"-"+theme, func(t *testing.T) {
					picture, console := browse(t, path, web.URL+"/?view="+state.view, size, theme == "dark")
					if console != "" {
						t.Errorf("the console has %s", console)
					}
					if got := picture.Bounds().Size(); got != size {
						t.Errorf("the picture has %v pixels, want %v", got, size)
					}
					wantMargins(t, picture, colors)
				})
			}
		}
	}
}

// theme has the colors --bg and --line of page.css.
type theme struct{ background, line color.RGBA }

var themes = map[string]theme{
	"light": {color.RGBA{255, 255, 255, 255}, color.RGBA{0xd7, 0xdc, 0xe1, 255}},
	"dark":  {color.RGBA{0x14, 0x17, 0x1a, 255}, color.RGBA{0x33, 0x3a, 0x41, 255}},
}

// wantMargins fails unless the outermost columns of a picture have the background alone, but for the line below the header, and the columns between them
// have more.
func wantMargins(t *testing.T, picture image.Image, colors theme) {
	t.Helper()
	b := picture.Bounds()
	others := map[color.RGBA]int{}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)
			if c == colors.background || c == colors.line {
				continue
			}
			others[c]++
			if x < b.Min.X+4 || x >= b.Max.X-4 {
				t.Fatalf("the page has %v at %d,%d, which is in its margin; the background is %v", c, x, y, colors.background)
			}
		}
	}
	if len(others) < 10 {
		t.Errorf("the picture has %d colors besides the background", len(others))
	}
}
