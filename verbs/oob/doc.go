// Package oob connects queue pairs out of band. Two processes that have a plain socket
// between them exchange the numbers of their queue pairs, and then connect the queue pairs.
//
// The nouns:
//
//   - A [QPInfo] identifies one queue pair to its peer: number, first sequence
//     number, LID, GID, and optional data of the program (a region and settings).
//     Its text form is one line that begins like the message of ibv_rc_pingpong.
//   - [Exchange] sends the own QPInfo over the socket and returns the peer's.
//   - [Config.Connect] exchanges QPInfos and connects. On devices with verbs.CapRawState it
//     moves the queue pair to RTS, as ibv_rc_pingpong does. On other devices one side
//     listens, its line has the address, and the other side dials.
//
// One side of a program:
//
//	conn, remote, err := oob.Config{Active: true}.Connect(ctx, sock, qp)
//	_, err = qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, SGL: sgl, Remote: remote.Region.RemoteAddr}})
//
// # Security
//
// The socket is as trustworthy as its network: this package neither authenticates
// the peer nor encrypts the exchange. Every line from the peer is checked, bounded to
// 4096 bytes, and refused unless it has exactly the form that [QPInfo.AppendText] writes.
//
// # Concurrency
//
// All functions are safe for concurrent use with different sockets and queue pairs. When
// a call returns, its goroutines have ended and the socket has no deadline.
package oob
