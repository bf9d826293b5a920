package verbs

import "cinnabar/verbs/driver"

// Kinds of work in completions.
const (
	// WCSend: a send.
	WCSend = driver.WCSend
	// WCWrite: a write, with or without immediate data.
	WCWrite = driver.WCWrite
	// WCRead: a read.
	WCRead = driver.WCRead
	// WCCompareSwap: an atomic compare and swap.
	WCCompareSwap = driver.WCCompareSwap
	// WCFetchAdd: an atomic fetch and add.
	WCFetchAdd = driver.WCFetchAdd
	// WCBindMW: the binding of a memory window.
	WCBindMW = driver.WCBindMW
	// WCLocalInv: the revocation of a key.
	WCLocalInv = driver.WCLocalInv
	// WCRecv: a received message.
	WCRecv = driver.WCRecv
	// WCRecvRDMAImm: a receive consumed by a write with immediate data.
	WCRecvRDMAImm = driver.WCRecvRDMAImm
)

// Outcomes of work requests. [WCStatus.Cause] gives the usual reasons.
const (
	// StatusSuccess: done.
	StatusSuccess = driver.StatusSuccess
	// StatusLocLenErr: the message does not fit the local buffers.
	StatusLocLenErr = driver.StatusLocLenErr
	// StatusLocQPOpErr: the queue pair could not process the request.
	StatusLocQPOpErr = driver.StatusLocQPOpErr
	// StatusLocEECOpErr: of reliable datagrams, obsolete.
	StatusLocEECOpErr = driver.StatusLocEECOpErr
	// StatusLocProtErr: a local key, range or right was wrong.
	StatusLocProtErr = driver.StatusLocProtErr
	// StatusWRFlushErr: the queue pair was in error before the request was processed.
	StatusWRFlushErr = driver.StatusWRFlushErr
	// StatusMWBindErr: a memory window operation failed.
	StatusMWBindErr = driver.StatusMWBindErr
	// StatusBadRespErr: the peer's answer fits no request.
	StatusBadRespErr = driver.StatusBadRespErr
	// StatusLocAccessErr: an inbound operation hit protected local memory.
	StatusLocAccessErr = driver.StatusLocAccessErr
	// StatusRemInvReqErr: the peer refused the form of the request.
	StatusRemInvReqErr = driver.StatusRemInvReqErr
	// StatusRemAccessErr: the peer refused key, range or right.
	StatusRemAccessErr = driver.StatusRemAccessErr
	// StatusRemOpErr: the peer could not complete the operation.
	StatusRemOpErr = driver.StatusRemOpErr
	// StatusRetryExcErr: the peer does not answer.
	StatusRetryExcErr = driver.StatusRetryExcErr
	// StatusRNRRetryExcErr: the peer had no receive posted.
	StatusRNRRetryExcErr = driver.StatusRNRRetryExcErr
	// StatusLocRDDViolErr: of reliable datagrams, obsolete.
	StatusLocRDDViolErr = driver.StatusLocRDDViolErr
	// StatusRemInvRDReqErr: of reliable datagrams, obsolete.
	StatusRemInvRDReqErr = driver.StatusRemInvRDReqErr
	// StatusRemAbortErr: the peer aborted the operation.
	StatusRemAbortErr = driver.StatusRemAbortErr
	// StatusInvEECNErr: of reliable datagrams, obsolete.
	StatusInvEECNErr = driver.StatusInvEECNErr
	// StatusInvEECStateErr: of reliable datagrams, obsolete.
	StatusInvEECStateErr = driver.StatusInvEECStateErr
	// StatusFatalErr: the device or the connection failed.
	StatusFatalErr = driver.StatusFatalErr
	// StatusRespTimeoutErr: no answer in time.
	StatusRespTimeoutErr = driver.StatusRespTimeoutErr
	// StatusGeneralErr: anything else.
	StatusGeneralErr = driver.StatusGeneralErr
	// StatusTMErr: a tag matching error.
	StatusTMErr = driver.StatusTMErr
	// StatusTMRndvIncomplete: a tag matching rendezvous left to software.
	StatusTMRndvIncomplete = driver.StatusTMRndvIncomplete
)

// NumWCStatus is the number of defined statuses, numbered from 0.
const NumWCStatus = driver.NumWCStatus
