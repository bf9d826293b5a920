package sockio

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAcceptPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var crowd, calm AcceptPace
		begin := time.Now()
		for range 100 * paceCount {
			crowd.Accepted()
		}
		if d := time.Since(begin); d != 99*paceRest {
			t.Errorf("a crowd was held up for %v, want %v", d, 99*paceRest)
		}
		begin = time.Now()
		for range 4 * paceCount {
			time.Sleep(time.Millisecond) //nolint:forbidigo // simulated time
			calm.Accepted()
		}
		if d := time.Since(begin); d != 4*paceCount*time.Millisecond {
			t.Errorf("calm clients were held up for %v", d-4*paceCount*time.Millisecond)
		}
	})
}
