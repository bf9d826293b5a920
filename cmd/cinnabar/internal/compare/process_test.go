package compare

import (
	"encoding/json"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// parity: S01
func TestTwoProcesses(t *testing.T) {
	code, o := clitest.RunProcess(t, "compare", "--size", "16MiB", "--json")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, o.Stderr)
	}
	var got struct{ Rows []row }
	if err := json.Unmarshal([]byte(o.Stdout.String()), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Rows) != 3 {
		t.Fatalf("rows: %+v", got.Rows)
	}
	for _, r := range got.Rows {
		if r.UserCopies != 0 || r.KernelCopies != 2 || !r.Verified || r.Bytes != 16*cli.MiB {
			t.Errorf("%+v", r)
		}
		// The unit of the rate is what its name says.
		if want := 16 / r.Seconds; r.MiBPerSecond < want*0.999 || r.MiBPerSecond > want*1.001 {
			t.Errorf("%s: 16 MiB in %g s are %g MiB/s, not %g", r.Way, r.Seconds, want, r.MiBPerSecond)
		}
	}
	if got.Rows[1].ReceiverCalls != 0 {
		t.Errorf("the receiver of one-sided writes made %d calls", got.Rows[1].ReceiverCalls)
	}
}
