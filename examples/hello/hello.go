// Package hello has the remote procedure, with its types, of the two programs of the manual's page on RPC.
package hello

import "cinnabar"

// In is the argument.
type In struct {
	Name string
}

// Out is the result.
type Out struct {
	Greeting string
	Count    int64 // how many the server has greeted so far
}

// Greet is the remote procedure, for the side that calls and the side that serves.
var Greet = cinnabar.NewRPC[In, Out]("greet")
