// Package testproc runs the other end of a test in a process of its own: the test binary again in another role, or a
// program that the test has built.
//
//		func TestMain(m *testing.M) {
//			testproc.Main(map[string]func(args []string) error{"server": serve}) // ends the process if it has a role
//			os.Exit(m.Run())
//		}
//
//		func TestServerDies(t *testing.T) {
//			p := testproc.Start(t, testproc.Command{Role: "server", Args: []string{"tcp://127.0.0.1:0"}})
//			addr := p.Stdout.Line() // the server prints its address when it is ready
//			...
//			p.Kill()
//		}
//
//	  - A [Command] says what runs: a role of the test binary, or a program.
//	  - A [Process] is a process that runs, or has ended. Its input is a pipe.
//	  - A [Stream] is what the process prints on one of its two outputs, kept from the first byte on.
//	  - [Build] builds programs for all tests of a package.
//
// Every wait has a limit ([Command].Limit), after which the test fails. At the end of the test a process that still runs is
// killed by its own id and waited for, and if the test has failed, the test's log has how the process ended and what it
// printed. Nothing here waits for time to pass.
//
// Methods of Process and Stream that may fail the test are called by the goroutine of the test that Start was given: a subtest
// starts processes of its own, or uses those of its parent where they do not fail. The others are safe for concurrent
// use.
package testproc
