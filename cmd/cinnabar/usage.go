package main

import "time"

// usage is what a process cost the system.
type usage struct {
	Known   bool          `json:"known"`   // false where the system does not tell
	Wakeups int64         `json:"wakeups"` // times a thread slept and was woken (voluntary context switches)
	CPU     time.Duration `json:"cpu_ns"`  // user and system time of all threads
}

// since is the cost between two readings.
func (u usage) since(before usage) usage {
	return usage{Known: u.Known && before.Known, Wakeups: u.Wakeups - before.Wakeups, CPU: u.CPU - before.CPU}
}
