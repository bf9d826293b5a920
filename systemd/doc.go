// Package systemd connects a service to its service manager: it reports when the service is ready and when it ends, proves to the
// watchdog that an engine serves, and takes the sockets that the manager has opened.
//
// The manager passes all that in variables of the environment. Without them the functions do nothing, so a program needs no
// option for a start by hand. [Listeners] reads LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES (sd_listen_fds in C), [Notify] reads
// NOTIFY_SOCKET (sd_notify), and [Watchdog] reads WATCHDOG_PID and WATCHDOG_USEC (sd_watchdog_enabled). The page docs/service.md has unit
// files and a whole service.
package systemd
