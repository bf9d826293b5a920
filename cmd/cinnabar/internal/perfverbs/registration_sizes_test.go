package perfverbs

import (
	"encoding/json"
	"os"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// TestMemCostOfEverySize measures from 4 KiB to 4 MiB, or to 256 MiB if large tests are asked for: each size has its row, with the three ways measured, and
// registering each time is counted apart from the transfer.
// parity: S11
func TestMemCostOfEverySize(t *testing.T) {
	most := "4MiB"
	if os.Getenv("CINNABAR_LARGE") != "" { // takes ten seconds
		most = "256MiB"
	}
	var r costReport
	out := clitest.WantRun(t, 0, []string{"perf", "registration", "--most", most, "--json"})
	if err := json.Unmarshal(out.Out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	want := int64(costLeast)
	for _, row := range r.Rows {
		if row.Bytes != want {
			t.Fatalf("a row of %d bytes, want %d", row.Bytes, want)
		}
		if row.Operations <= 0 || row.Pool <= 0 || row.Cache <= 0 || row.Registers <= 0 || row.Each <= row.Registers {
			t.Errorf("%+v", row)
		}
		want *= 4
	}
	if limit, err := cli.ParseSize("--most", most, costLeast, costMost); err != nil || want != 4*limit {
		t.Errorf("the last row has %d bytes, want %s; %v", want/4, most, err)
	}
	if r.Registrations != uint64(len(r.Rows)) {
		t.Errorf("the cache registered %d times for %d sizes", r.Registrations, len(r.Rows))
	}
}
