// Package xfer moves files between machines over RDMA with the flow control of
// Tarick Bedeir's paper Basic Flow Control for RDMA Transfers (2013): by the
// paper's protocol, and by the faster one that its section 4.2 describes. It works
// on any device of package verbs.
//
// The nouns:
//
//   - A [Sender] sends a [Source]: a name, an io.ReaderAt, a size.
//   - A [Receiver] receives files from many senders at once. Its Open field is the
//     policy of names and files, and gets a context that ends with the transfer; a [Dir], a directory, is the usual policy.
//   - A [Puller] receives files from a receiver that has Files: the fast protocol the other way round, by a [FileRequest].
//   - A [Result] has the facts of a transfer. An [*Error] has the reason of a failure, its [Code],
//     and the side that has found it.
//
// A receiver and a sender:
//
//	dev, err := iwarp.Open(iwarp.Config{})
//	l, err := verbs.Listen(dev, netip.MustParseAddrPort("0.0.0.0:12345"))
//	dir, err := xfer.OpenDir(ctx, "incoming", xfer.DirOptions{})
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
// the client writes the file name into it, and then each chunk of the file. Each write
// has its size as immediate data, and after each the client waits for the message READY. A write of
// zero bytes ends the file, and the server answers it with the message DONE. On a device without write-with-immediate the two sides agree on the
// form of section 4.1: a write, and behind it a message with the size. If a device
// forbids the receiver to send first (iWARP set up without peer-to-peer), the sender
// begins: with an empty message in the form of section 4.1, and otherwise with a write of zero bytes.
//
// # The fast protocol
//
// [Fast] is section 4.2: the server offers several buffers, which the client fills
// in turn as long as the server has given them back. Reading, crossing and
// writing overlap. Each chunk has a CRC32C, and the whole file a digest that is
// compared before the file gets its name: SHA-256, or one that both programs have in their
// [Hashes] under the same name. Both detect accidental errors of network, memory and
// programs. They do not authenticate the sender, because every sender can compute them. They are no defence against a
// sender that rewrites a buffer between checksum,
// file and digest, because these read it one after another: the stored file then has bytes
// that the sender wrote, but the digest does not match it.
//
// # The receiver chooses
//
// A sender lets the receiver choose the ranges that cross if the source has a [Choice]. The receiver's file, a [Chooser], asks for ranges of the source, or for
// their sums, which it compares with the bytes that it has. So a [Dir] goes on with a transfer that was cut, for DirOptions.KeepFor, and takes no file
// that it has already. Package xfer/tree does the same for directories. A [Puller] is a
// receiver, and its file chooses if Puller.Choose is set. docs/filetransfer.md has the messages, docs/adr/0053 and 0058 the reasons.
//
// # Several lanes
//
// With Sender.Lanes a source that has a Choice crosses over several connections, its lanes, as one transfer. The receiver gives a lane further ranges when it has
// stored earlier ones of that lane. The other lanes join by a secret that the receiver has sent on the first lane. With Puller.Lanes a pull does the same. hello.go
// has the bytes, docs/adr/0057 the reasons.
//
// # Agreement
//
// The sender sends its abilities and wishes in the private data of its connection request. The
// receiver decides and answers in the same way, and logs the decision. A peer without
// such private data counts as the paper's program and gets the basic protocol with
// immediate data. Such a peer gets no error messages: if a transfer fails it sees the
// connection end. All others receive the error as text.
//
// # Guarantees
//
// A file stands under its name when it is complete, never before. A failed transfer leaves
// no file, unless the directory keeps partial files. That holds when programs are
// killed. It holds over a power cut or a crash of the system with DirOptions.Sync
// only, because a file system may store a new name before the data. However the attempt to give the file
// its name ends, the receiver reports success if it has it. A sender that has sent all
// and receives no answer cannot know the result, and its error says so. A peer that is silent for longer than
// the timeout is given up. No sender can end a receiver, reach beyond
// its directory, or write to memory of another transfer: each has a protection domain
// of its own, and keys that only its peer knows. No transfer gets more memory than
// its file fills, or than its part of the receiver's memory for all.
//
// # Concurrency
//
// Sends and transfers of one receiver are independent. Each has a goroutine for
// protocol and network, one for the disk and, with a digest, one for the digest. If a side
// has one processor, a transfer with a digest has one goroutine for all three. Two sides on
// one host have half of its processors each. Data goes
// from the file to registered memory to the file; memory is that of the agreed
// buffers, and nothing is allocated per chunk.
//
// # Limits
//
// A transfer carries one file, or a directory that package xfer/tree has made one of.
// The size must be known before, unless the source is a Stream.
package xfer
