package na

import (
	"sync"
	"testing"
)

func TestEventWithoutWaiting(t *testing.T) {
	var ev Event
	if ev.IsSet() {
		t.Error("a new event has happened")
	}
	ev.Set()
	ev.Set()
	if !ev.IsSet() || ev.Park() != nil {
		t.Error("a set event has not happened")
	}
	ev.Reset()
	if ev.IsSet() {
		t.Error("an event has happened after Reset")
	}
}

func TestEventPark(t *testing.T) {
	var ev Event
	for range 3 { // the channel is kept, and empty, between uses
		wake := ev.Park()
		if wake == nil {
			t.Fatal("Park of a pending event returns nil")
		}
		ev.Set()
		<-wake
		if len(wake) != 0 || !ev.IsSet() {
			t.Error("more than one token, or not set")
		}
		ev.Reset()
	}
}

func TestEventUnpark(t *testing.T) {
	var ev Event
	ev.Park()
	if ev.Unpark() {
		t.Error("Unpark says that a pending event has happened")
	}
	wake := ev.Park()
	ev.Set()
	if !ev.Unpark() || len(wake) != 0 {
		t.Error("Unpark does not see that the event has happened, or leaves its token")
	}
}

// TestEventRaces sets, parks and gives up at the same time. The token must not be left for the next use.
func TestEventRaces(t *testing.T) {
	var ev Event
	for i := range 20000 {
		var wg sync.WaitGroup
		wg.Go(ev.Set)
		if wake := ev.Park(); wake != nil {
			if i%2 == 0 {
				<-wake
			} else {
				for !ev.Unpark() {
					if ev.Park() == nil {
						break
					}
				}
			}
		}
		if !ev.IsSet() {
			t.Fatal("the event has not happened after its token")
		}
		wg.Wait()
		if len(ev.wake) != 0 {
			t.Fatal("a token is left")
		}
		ev.Reset()
	}
}

// TestEventReuse reuses the event as soon as it is seen set, while Set is still under way.
func TestEventReuse(t *testing.T) {
	var ev Event
	turns := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range turns {
			ev.Set()
		}
	})
	for range 20000 {
		turns <- struct{}{}
		if wake := ev.Park(); wake != nil {
			<-wake
		}
		ev.Reset()
	}
	close(turns)
	wg.Wait()
}

func TestEventDoesNotAllocate(t *testing.T) {
	var ev Event
	ev.Park() // makes the channel
	ev.Unpark()
	if n := testing.AllocsPerRun(100, func() {
		wake := ev.Park()
		ev.Set()
		<-wake
		ev.Reset()
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
