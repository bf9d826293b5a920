// Package share serves the files of a directory to programs that pull them by package xfer, and reads the lists that such a server sends.
//
// The nouns:
//
//   - A [Dir] is a directory that is served. Its Files method is the Files of an xfer.Receiver.
//   - An [Entry] is an entry of a list. [List] pulls the list of a directory.
//
// A server, and a puller that stores into a directory of its own:
//
//	dir, err := share.OpenDir("public", share.Options{})
//	r := xfer.Receiver{Open: refuse, Files: dir.Files}
//	err = r.Serve(ctx, l)
//
//	in, err := tree.OpenDir(ctx, "incoming", tree.DirOptions{})
//	p := xfer.Puller{Open: in.Open, Choose: true}
//	res, err := p.Pull(ctx, dev, addr, xfer.FileRequest{Op: xfer.RequestFile, Path: "photos"})
//
// # Guarantees
//
// No path leads out of the directory (os.Root), through symbolic links neither. Paths with an element that begins with a dot are refused,
// and left out of lists and trees, unless the options allow them; so are those that reach such a name through a symbolic link, as long as nobody
// exchanges directories for links at that moment. A Dir opens regular files and directories only, and does not wait for the writer
// of a named pipe. Peers do not get the server's own paths in errors. The number of lists and trees under way is bounded, for each host and in all, and so
// are the entries and bytes of a list.
//
// # Concurrency
//
// A Dir is safe for concurrent use.
package share
