package main

import "cinnabar/xfer"

// What the reader of an error may do about it, by class. Classes whose texts say
// all there is are left out.

var sendRemedies = map[xfer.Code]string{
	xfer.CodeName:        "rename the file; names that begin with a dot need recv --allow-dotfiles",
	xfer.CodeExists:      "rename the file, or let the receiver replace files (recv --overwrite)",
	xfer.CodeStorage:     "the receiver needs room and the right to write where it puts files (recv --dir)",
	xfer.CodeSource:      "check the file and its disk",
	xfer.CodeChanged:     "send it again when nothing writes to it",
	xfer.CodeCorrupt:     "send it again; if that repeats, suspect the memory or disk of one side",
	xfer.CodeTooLarge:    "ask for less with --chunk and --buffers",
	xfer.CodeBusy:        "try again later, or raise the receiver's limits (recv --max-connections, --max-memory)",
	xfer.CodeUnsupported: "try without --protocol",
	xfer.CodeTimeout:     "see whether the receiver still runs; --timeout waits longer",
	xfer.CodeLost:        "see whether cinnabar recv runs there and can be reached; it listens on its own machine's loopback address unless it is started with --listen ADDR",
}

var recvRemedies = map[xfer.Code]string{
	xfer.CodeExists:      "--overwrite replaces files",
	xfer.CodeStorage:     "make room and see to the rights, or choose another --dir",
	xfer.CodeChanged:     "have it sent again when nothing writes to it",
	xfer.CodeCorrupt:     "have it sent again; if that repeats, suspect the memory or disk of one side",
	xfer.CodeBusy:        "--max-connections and --max-memory raise the limits",
	xfer.CodeTimeout:     "--timeout waits longer",
	xfer.CodeUnsupported: "the two programs may be of different versions",
}
