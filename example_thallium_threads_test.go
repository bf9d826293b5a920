package cinnabar_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/margo"
)

// 10_threads and 11_tasks: sixteen goroutines. They are cheap, may block, and run on as many processors as there are, so
// nobody creates execution streams. Tasks, which cannot block, have no form of their own.
// parity: T71
func Example_thallium10Threads() {
	var hellos atomic.Int32
	var ths sync.WaitGroup
	for range 16 {
		ths.Go(func() { hellos.Add(1) })
	}
	ths.Wait() // join
	fmt.Println(hellos.Load(), "hellos")
	// Output: 16 hellos
}

// 12_shared_pool: four execution streams that take work from one pool are four goroutines that take it from one channel.
func Example_thallium12SharedPool() {
	pool := make(chan func())
	var ess sync.WaitGroup
	for range 4 {
		ess.Go(func() {
			for work := range pool {
				work()
			}
		})
	}
	var hellos atomic.Int32
	for range 16 {
		pool <- func() { hellos.Add(1) }
	}
	close(pool)
	ess.Wait()
	fmt.Println(hellos.Load(), "hellos")
	// Output: 16 hellos
}

// 13_mutex: a sync.Mutex, and likewise sync.RWMutex, sync.Cond and sync.WaitGroup, which engines know nothing of: a
// goroutine that waits holds up no processor.
// parity: T71
func Example_thallium13Mutex() {
	var (
		mtx     sync.Mutex
		counter int
		ths     sync.WaitGroup
	)
	for range 16 {
		ths.Go(func() {
			mtx.Lock()
			defer mtx.Unlock()
			counter++
		})
	}
	ths.Wait()
	fmt.Println("counter =", counter)
	// Output: counter = 16
}

// 14_custom_sched: a scheduler that prefers one pool and takes from another when that is empty is a goroutine with two
// channels.
func Example_thallium14CustomSched() {
	own, other := make(chan string, 4), make(chan string, 4)
	other <- "stolen"
	own <- "first"
	own <- "second"
	close(other)
	close(own)
	for open := 2; open > 0; {
		select {
		case work, ok := <-own:
			if ok {
				fmt.Println(work)
				continue
			}
			own, open = nil, open-1
		default:
			if work, ok := <-other; ok {
				fmt.Println(work)
				continue
			}
			return
		}
	}
	// Output:
	// first
	// second
	// stolen
}

// 18_config: the configuration is Margo's JSON. Execution streams become the workers of the pools that they serve.
// parity: T02 T12 T13
func Example_thallium18Config() {
	cfg, err := margo.ParseConfig([]byte(`{
		"argobots": {
			"pools": [
				{"name": "__primary__", "kind": "fifo_wait", "access": "mpmc"},
				{"name": "my_pool", "kind": "prio_wait", "access": "mpmc"}
			],
			"xstreams": [
				{"name": "__primary__", "scheduler": {"type": "basic_wait", "pools": [0]}},
				{"name": "my_es", "scheduler": {"type": "basic_wait", "pools": ["my_pool"]}}
			]
		}
	}`))
	check(err)
	server, err := margo.Listen(context.Background(), "ofi+tcp://127.0.0.1", cfg)
	check(err)
	defer server.Close()
	fmt.Println("pool:", server.LookupPool("my_pool").Config().Name)
	// Output: pool: my_pool
}

// 19_logging: a logger is a slog.Logger, whose handler is the program's.
// parity: T15 T75
func Example_thallium19Logging() {
	plain := &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "peer" { // differ from run to run
			return slog.Attr{}
		}
		return a
	}}
	server, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", &cinnabar.Config{Logger: slog.New(slog.NewTextHandler(os.Stdout, plain))})
	check(err)
	defer server.Close()
	called := make(chan struct{})
	check(cppNamed.Handle(server, func(context.Context, string) error {
		close(called)
		return codes.InvalidArg
	}))
	check(cppNamed.Send(context.Background(), server.Self(), ""))
	<-called
	check(server.Shutdown(context.Background())) // waits until it is logged
	// Output: level=WARN msg="handler of a one-way request fails" rpc=hello error=HG_INVALID_ARG
}

// 20_timed_cb: a function that runs later, unless it is cancelled.
// parity: T14
func Example_thallium20TimedCallback() {
	server, _ := onLoopback()
	defer server.Close()
	called := make(chan struct{}, 1)
	timer := margo.NewTimer(server, func(context.Context) {
		fmt.Println("Calling the timed callback")
		called <- struct{}{}
	})
	check(timer.Start(10 * time.Millisecond))
	<-called
	fmt.Println("This should be after the callback")
	check(timer.Cancel(context.Background())) // until it has returned
	check(timer.Start(time.Hour))
	check(timer.Cancel(context.Background()))
	fmt.Println("Cancelled")
	// Output:
	// Calling the timed callback
	// This should be after the callback
	// Cancelled
}
