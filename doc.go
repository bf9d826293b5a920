// Package cinnabar is RDMA for Go: the verbs of RDMA programming in pure Go, on a device that needs no hardware.
//
// The root package holds no code yet. It is the place of the layer above verbs: remote procedure calls with bulk
// transfers of memory. What there is to use now:
//
//   - [cinnabar/verbs]: protection domains, memory regions, queue pairs, completion queues, connections;
//   - [cinnabar/verbs/iwarp]: a software device that speaks iWARP over TCP, the standard that RDMA network
//     cards and operating system kernels speak too;
//   - [cinnabar/verbs/fault]: a layer around any device that loses, delays and corrupts on purpose, for tests;
//   - [cinnabar/verbs/driver]: what a device implements.
//
// The command in cmd/cinnabar shows the verbs at work. The manual is in docs/.
package cinnabar
