// Package systemd connects a service to systemd, the service manager: it reports when the service is ready and when it ends, proves to the
// watchdog that an engine serves, and takes the sockets that the manager has opened.
//
// The manager passes its settings in environment variables. Without them the following functions do nothing, so a program needs no
// option for a start by hand. [Listeners] reads LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES (sd_listen_fds in C), [Notify] reads
// NOTIFY_SOCKET (sd_notify), and [Watchdog] reads WATCHDOG_PID and WATCHDOG_USEC (sd_watchdog_enabled). [Probe] makes the calls by which the
// watchdog sees that an engine serves. The page docs/service.md has a whole service, and contrib/systemd has unit files.
package systemd
