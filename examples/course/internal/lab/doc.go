// Package lab has the parts that the programs of the course share: two devices that stand for two machines, connections between them,
// and a recorder that writes the bytes of the connections as a capture.
//
//	func main() { lab.Run(iwarp.Config{}, lesson) }
//
//	func lesson(ctx context.Context, l *lab.Lab) {
//		client, server := l.Pair(ctx)
//		...
//	}
//
// Lab has two software devices in this process, Client and Server, which exchange all data over TCP on the loopback interface. End is one
// end of a connection, with the objects that its program uses: protection domain, completion queue, queue pair. Must ends a program at its
// first error, so that the lines of a lesson show the steps and not the errors; programs of other kinds return errors.
//
// The set-up that the package hides is explained step by step in docs/getting-started.md. A Lab is used by one goroutine at a time; the
// objects of package verbs are safe for concurrent use.
package lab
