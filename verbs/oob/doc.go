// Package oob connects queue pairs out of band: two processes that have a plain
// socket between them exchange the numbers of their queue pairs, and then connect.
//
// The nouns:
//
//   - A [QPInfo] identifies one queue pair to its peer: number, first sequence
//     number, LID, GID, and further data of the program.
//     Its text form is one line that begins like the message of ibv_rc_pingpong.
//   - [Exchange] sends the own QPInfo over the socket and returns the peer's.
//   - [Config.Connect] exchanges and connects. On devices whose queue pairs are driven
//     by hand (verbs.CapRawState) it drives them to RTS, as ibv_rc_pingpong does; on
//     others one side listens, the line has its address, and the other side dials.
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
// All functions are safe for concurrent use with different sockets and queue pairs. A
// call that has returned has left no goroutine and no deadline behind.
package oob
