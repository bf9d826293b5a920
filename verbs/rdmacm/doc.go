// Package rdmacm connects queue pairs in the manner of librdmacm, because programs written
// for that library are ported with fewer changes. New programs use verbs.Dial and verbs.Listen.
//
// The nouns:
//
//   - An [EventChannel] collects the events of its identifiers (struct
//     rdma_event_channel). [EventChannel.Get] returns the oldest [Event], which the
//     caller acknowledges.
//   - An [ID] is one connection, from before it is made, or one listener (struct rdma_cm_id).
//     Its methods return at once, and an Event reports the result of each.
//   - An [Endpoint] is a queue pair with its protection domain, completion queues and
//     connection, for synchronous programs (rdma_create_ep and the functions of rdma_verbs.h).
//
// The C functions and their form here:
//
//	rdma_create_event_channel, rdma_destroy_event_channel   NewEventChannel, EventChannel.Close
//	rdma_get_cm_event, rdma_ack_cm_event                    EventChannel.Get, Event.Ack
//	rdma_create_id, rdma_destroy_id                         EventChannel.NewID, ID.Close
//	rdma_resolve_addr, rdma_resolve_route                   ID.ResolveAddr, ID.ResolveRoute
//	rdma_connect, rdma_disconnect                           ID.Connect, ID.Disconnect
//	rdma_bind_addr and rdma_listen                          ID.Listen
//	rdma_accept, rdma_reject                                ID.Accept, ID.Reject
//	rdma_set_option: RDMA_OPTION_ID_TOS, _ACK_TIMEOUT       ConnParam.TypeOfService, ConnParam.AckTimeout
//	rdma_set_option: RDMA_OPTION_ID_REUSEADDR, _AFONLY      ConnParam.ReuseSource, ListenConfig.OnlyIPv6
//	src_addr of rdma_resolve_addr                           ConnParam.Source
//	rdma_migrate_id                                         ID.Migrate
//	rdma_get_local_addr, rdma_get_peer_addr                 ID.LocalAddr, ID.RemoteAddr
//	rdma_create_ep, rdma_destroy_ep                         NewEndpoint, ListenEndpoints, Endpoint.Close
//	rdma_get_request                                        EndpointListener.GetRequest
//	rdma_reg_msgs, rdma_post_send, rdma_get_send_comp, …    Endpoint.RegMsgs, Endpoint.PostSend, Endpoint.SendComp, …
//	rdma_getaddrinfo                                        verbs.Resolve
//
// # Concurrency
//
// All methods are safe for concurrent use, except methods of Endpoint with a comment
// that says otherwise. Closing a channel closes its identifiers and waits for their
// goroutines.
//
// # Limits
//
// This package has neither multicast nor the choice of a route, because IP networks choose
// the route themselves.
package rdmacm
