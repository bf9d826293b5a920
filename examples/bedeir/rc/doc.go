// Package rc is the connection library of Bedeir's paper on flow control
// ("Basic Flow Control for RDMA Transfers", 2013): programs handle a connection
// in four callbacks, and the library does the rest.
//
// It is an example of a library over verbs/rdmacm. Its functions keep the paper's names
// (Die, GetPD), because readers compare this package with the paper. The table shows the
// paper's six functions and those of this package:
//
//	rc_init         Init                  takes the callbacks and allocates the protection domain
//	rc_client_loop  Library.ClientLoop    connects, and works until the connection is over
//	rc_disconnect   Conn.Disconnect       ends a connection in order
//	rc_die          Die                   makes the error that ends a loop, not the process
//	rc_get_pd       Library.GetPD         is where callbacks register memory
//	rc_server_loop  Library.ServerLoop    listens, and serves connections until its context ends
//
// A server:
//
//	lib, err := rc.Init(dev, rc.Config{
//		PreConnection: func(c *rc.Conn) error { … },             // register memory, post receives
//		Connection:    func(c *rc.Conn) error { … },             // send the first message
//		Completion:    func(c *rc.Conn, wc verbs.WC) error { … }, // react
//		Disconnect:    func(c *rc.Conn, err error) { … },        // release
//	})
//	if err != nil {
//		return err
//	}
//	defer lib.Close()
//	return lib.ServerLoop(ctx, ":12345")
//
// # Callbacks
//
// For one connection they are called one after the other, by one goroutine, in
// this order: PreConnection, Connection, Completion any number of times,
// Disconnect. Disconnect is called once for every connection for which PreConnection
// was called, however far it came, when no completion can follow and the queue
// pair is closed: it may release all memory. Callbacks of different connections
// run at the same time. A callback that is nil has nothing to do.
//
// An error that a callback returns ends its connection and no other, unless it
// comes from [Die]. Failed completions are not delivered: they end the connection.
// Connection events that mean nothing here are logged and otherwise ignored.
//
// # Limits
//
// The queues of a connection hold ten sends and ten receives of one gather entry
// each, as in the paper. A server takes Config.MaxConns connections at a time;
// further ones wait for their turn.
package rc
