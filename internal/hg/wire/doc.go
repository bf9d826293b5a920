// Package wire is what Mercury's and Margo's RPCs look like in messages: the ids that names and provider ids have, and the
// two short headers that Margo puts in front of the arguments and results of a program.
//
//   - [ID] makes the 64-bit id of a name and a provider as Margo does; [Djb2] the id that plain Mercury gives a name.
//   - [AppendRequestHeader], [ParseResponseHeader] and their kin write and read the two headers.
//
// Everything here is a function of its arguments and safe for concurrent use.
package wire
