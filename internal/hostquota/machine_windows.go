package hostquota

// openFiles returns 0: not known.
func openFiles() int64 { return 0 }
