package main

import (
	"encoding/json"
	"testing"

	"cinnabar/verbs"
)

// TestMemCost prints every size in every way, as a table and as JSON.
func TestMemCost(t *testing.T) {
	wantRun(t, 0, []string{"mem", "cost", "--most", "10KiB"}, "4.0 KiB ", "10 KiB ", "registered once", "registered 2 times")
	var r costReport
	out := wantRun(t, 0, []string{"mem", "cost", "--most", "4KiB", "--json"})
	if err := json.Unmarshal(out.out.Bytes(), &r); err != nil || len(r.Rows) != 1 || r.Rows[0].Bytes != 4096 || r.Rows[0].Pool <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, most := range []string{"1KiB", "1GiB", "x"} {
		wantRun(t, 2, []string{"mem", "cost", "--most", most}, "--most")
	}
}

// TestMemCostRegistrations counts registrations: those of the pool and the cache do not grow with the transfers.
func TestMemCostRegistrations(t *testing.T) { eachDevice(t, testMemCostRegistrations) }

func testMemCostRegistrations(t *testing.T, open func(*testing.T) *verbs.Device) {
	dev := open(t)
	r, err := measureCost(t.Context(), dev, 16<<10)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2 || r.Rows[1].Bytes != 16<<10 || r.Registrations != 2 {
		t.Errorf("%+v", r)
	}
}
