// Package xfer moves files between machines over RDMA with the flow control of
// Tarick Bedeir's paper Basic Flow Control for RDMA Transfers (2013), as printed
// and in the faster form that the paper announces. It works on any device of
// package verbs.
//
// The nouns:
//
//   - A [Sender] sends a [Source]: a name, an io.ReaderAt, a size.
//   - A [Receiver] takes files from many senders at once. Its Open field is the
//     policy of names and files; [Dir] is the usual one, a directory.
//   - A [Result] tells what a transfer did, an [*Error] why it failed: with a [Code],
//     and whether this side or the other one found out.
//
// A receiver and a sender:
//
//	dev, err := iwarp.Open(iwarp.Config{})
//	l, err := verbs.Listen(dev, netip.MustParseAddrPort("0.0.0.0:12345"))
//	dir, err := xfer.OpenDir("incoming", xfer.DirOptions{})
//	r := xfer.Receiver{Open: dir.Open}
//	err = r.Serve(ctx, l) // until ctx ends
//
//	src, f, err := xfer.OpenFile("test-file", false)
//	defer f.Close()
//	var s xfer.Sender
//	res, err := s.Send(ctx, dev, addr, src)
//
// # The basic protocol
//
// [Basic] is the paper's protocol of 13 steps: the server offers one buffer of 10 MiB,
// the client writes the file name into it, then chunk after chunk, each time with
// the size as immediate data, and each time waits for READY; zero bytes end the file,
// DONE answers. On a device without write-with-immediate the two sides agree on the
// form of section 4.1: a write, and behind it a message with the size. Where a device
// forbids the receiver to speak first (iWARP set up without peer-to-peer) the sender
// opens: with an empty message in that form, with a write of no bytes in the other.
//
// # The fast protocol
//
// [Fast] is section 4.2: the server offers several buffers, which the client fills
// in turn as long as the server has given them back. Reading, crossing and
// writing overlap. Each chunk has a CRC32C, and the whole file a SHA-256 that is
// compared before the file gets its name. Both find out what network, memory and
// programs do by mistake. They are no defence against a sender who rewrites a buffer
// between checksum, file and digest, which read it one after another: what is
// stored is then what that sender wrote, but not what the digest says.
//
// # Agreement
//
// The sender says what it can in the private data of its connection request, the
// receiver decides and answers in the same way; the log says what. A peer without
// such private data is taken for the paper's program and gets the basic protocol with
// immediate data. Such a peer cannot be told why a transfer fails: it sees the
// connection end. All others are told in words.
//
// # What is promised
//
// A file stands under its name when it is complete, never before; what fails leaves
// nothing, unless the directory keeps partial files. That holds when programs are
// killed. It holds over a power cut or a crash of the system with DirOptions.Sync
// only, because a file system may store a new name before the data. However the attempt to give the file
// its name ends, the receiver reports success if it has it. A sender that has sent all
// and hears no more cannot know, and says so. A peer that is silent for longer than
// the timeout is given up. No sender can end a receiver, reach beyond
// its directory, or write to memory of another transfer: each has a protection domain
// of its own, and memory that only its peer's key opens. None gets more memory than
// its file fills, or than a part of what the receiver has for all.
//
// # Concurrency
//
// Sends and transfers of one receiver are independent. Each has a goroutine for
// protocol and network, one for the disk and, with a digest, one for that. Data goes
// from the file to registered memory to the file; memory is that of the agreed
// buffers, and nothing is allocated per chunk.
//
// # Limits
//
// One connection carries one file. The size must be known before. Transfers
// that were interrupted begin again.
package xfer
