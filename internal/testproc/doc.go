// Package testproc starts processes for tests: the test binary itself with a role, such as "server", or a program that the
// test has built.
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
//	  - A [Command] names a role of the test binary, or a program, and its arguments.
//	  - A [Process] is a started process, which may have ended. Its standard input is a pipe.
//	  - A [Stream] holds all bytes that the process has printed on standard output, or on standard error.
//	  - [Build] builds programs for all tests of a package.
//
// Every wait has a limit ([Command].Limit), after which the test fails. The end of the test kills a process that still runs, by
// its id, and waits for its end. If the test has failed, its log then has the exit status and the output of the process.
//
// The methods of Process and Stream that can fail the test are called on the goroutine of the test that was passed to Start, because
// they call its Fatalf. So a subtest calls these methods only on processes of its own. The other methods are safe for concurrent use.
package testproc
