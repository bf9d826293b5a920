//go:build unix && !linux

package bench

// memoryRoom knows no file systems in memory on other systems.
func memoryRoom(string, int64) bool { return false }
