package verbs

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// enums are this package's constants by the names that C gives them.
var enums = map[string]any{
	"IBV_WR_RDMA_WRITE": OpWrite, "IBV_WR_RDMA_WRITE_WITH_IMM": OpWriteImm, "IBV_WR_SEND": OpSend,
	"IBV_WR_SEND_WITH_IMM": OpSendImm, "IBV_WR_RDMA_READ": OpRead, "IBV_WR_ATOMIC_CMP_AND_SWP": OpCompareSwap,
	"IBV_WR_ATOMIC_FETCH_AND_ADD": OpFetchAdd, "IBV_WR_LOCAL_INV": OpLocalInv, "IBV_WR_BIND_MW": OpBindMW,
	"IBV_WR_SEND_WITH_INV": OpSendInvalidate,

	"IBV_SEND_FENCE": Fence, "IBV_SEND_SIGNALED": Signaled, "IBV_SEND_SOLICITED": Solicited, "IBV_SEND_INLINE": Inline,

	"IBV_WC_SUCCESS": StatusSuccess, "IBV_WC_LOC_LEN_ERR": StatusLocLenErr, "IBV_WC_LOC_QP_OP_ERR": StatusLocQPOpErr,
	"IBV_WC_LOC_EEC_OP_ERR": StatusLocEECOpErr, "IBV_WC_LOC_PROT_ERR": StatusLocProtErr,
	"IBV_WC_WR_FLUSH_ERR": StatusWRFlushErr, "IBV_WC_MW_BIND_ERR": StatusMWBindErr, "IBV_WC_BAD_RESP_ERR": StatusBadRespErr,
	"IBV_WC_LOC_ACCESS_ERR": StatusLocAccessErr, "IBV_WC_REM_INV_REQ_ERR": StatusRemInvReqErr,
	"IBV_WC_REM_ACCESS_ERR": StatusRemAccessErr, "IBV_WC_REM_OP_ERR": StatusRemOpErr,
	"IBV_WC_RETRY_EXC_ERR": StatusRetryExcErr, "IBV_WC_RNR_RETRY_EXC_ERR": StatusRNRRetryExcErr,
	"IBV_WC_LOC_RDD_VIOL_ERR": StatusLocRDDViolErr, "IBV_WC_REM_INV_RD_REQ_ERR": StatusRemInvRDReqErr,
	"IBV_WC_REM_ABORT_ERR": StatusRemAbortErr, "IBV_WC_INV_EECN_ERR": StatusInvEECNErr,
	"IBV_WC_INV_EEC_STATE_ERR": StatusInvEECStateErr, "IBV_WC_FATAL_ERR": StatusFatalErr,
	"IBV_WC_RESP_TIMEOUT_ERR": StatusRespTimeoutErr, "IBV_WC_GENERAL_ERR": StatusGeneralErr,
	"IBV_WC_TM_ERR": StatusTMErr, "IBV_WC_TM_RNDV_INCOMPLETE": StatusTMRndvIncomplete,

	"IBV_WC_SEND": WCSend, "IBV_WC_RDMA_WRITE": WCWrite, "IBV_WC_RDMA_READ": WCRead, "IBV_WC_COMP_SWAP": WCCompareSwap,
	"IBV_WC_FETCH_ADD": WCFetchAdd, "IBV_WC_BIND_MW": WCBindMW, "IBV_WC_LOCAL_INV": WCLocalInv, "IBV_WC_RECV": WCRecv,
	"IBV_WC_RECV_RDMA_WITH_IMM": WCRecvRDMAImm,

	"IBV_ACCESS_LOCAL_WRITE": LocalWrite, "IBV_ACCESS_REMOTE_WRITE": RemoteWrite, "IBV_ACCESS_REMOTE_READ": RemoteRead,
	"IBV_ACCESS_REMOTE_ATOMIC": RemoteAtomic, "IBV_ACCESS_MW_BIND": MWBind, "IBV_ACCESS_ZERO_BASED": ZeroBased,
	"IBV_ACCESS_ON_DEMAND": OnDemand, "IBV_ACCESS_HUGETLB": HugeTLB, "IBV_ACCESS_FLUSH_GLOBAL": FlushGlobal,
	"IBV_ACCESS_FLUSH_PERSISTENT": FlushPersistent, "IBV_ACCESS_RELAXED_ORDERING": RelaxedOrdering,

	"IBV_QPT_RC": RC, "IBV_QPT_UC": UC, "IBV_QPT_UD": UD, "IBV_QPT_RAW_PACKET": RawPacket,
	"IBV_QPT_XRC_SEND": XRCSend, "IBV_QPT_XRC_RECV": XRCRecv,

	"IBV_QPS_RESET": StateReset, "IBV_QPS_INIT": StateInit, "IBV_QPS_RTR": StateRTR, "IBV_QPS_RTS": StateRTS,
	"IBV_QPS_SQD": StateSQD, "IBV_QPS_SQE": StateSQE, "IBV_QPS_ERR": StateErr,

	"IBV_QP_STATE": AttrState, "IBV_QP_CUR_STATE": AttrCurState, "IBV_QP_EN_SQD_ASYNC_NOTIFY": AttrEnSQDAsyncNotify,
	"IBV_QP_ACCESS_FLAGS": AttrAccess, "IBV_QP_PKEY_INDEX": AttrPKeyIndex, "IBV_QP_PORT": AttrPort,
	"IBV_QP_QKEY": AttrQKey, "IBV_QP_AV": AttrAV, "IBV_QP_PATH_MTU": AttrPathMTU, "IBV_QP_TIMEOUT": AttrTimeout,
	"IBV_QP_RETRY_CNT": AttrRetryCount, "IBV_QP_RNR_RETRY": AttrRNRRetry, "IBV_QP_RQ_PSN": AttrRQPSN,
	"IBV_QP_MAX_QP_RD_ATOMIC": AttrMaxRDAtomic, "IBV_QP_MIN_RNR_TIMER": AttrMinRNRTimer, "IBV_QP_SQ_PSN": AttrSQPSN,
	"IBV_QP_MAX_DEST_RD_ATOMIC": AttrMaxDestRDAtomic, "IBV_QP_CAP": AttrCap, "IBV_QP_DEST_QPN": AttrDestQPN,

	"IBV_EVENT_CQ_ERR": EventCQErr, "IBV_EVENT_QP_FATAL": EventQPFatal, "IBV_EVENT_QP_REQ_ERR": EventQPReqErr,
	"IBV_EVENT_QP_ACCESS_ERR": EventQPAccessErr, "IBV_EVENT_COMM_EST": EventCommEst, "IBV_EVENT_SQ_DRAINED": EventSQDrained,
	"IBV_EVENT_PATH_MIG": EventPathMig, "IBV_EVENT_PATH_MIG_ERR": EventPathMigErr, "IBV_EVENT_DEVICE_FATAL": EventDeviceFatal,
	"IBV_EVENT_PORT_ACTIVE": EventPortActive, "IBV_EVENT_PORT_ERR": EventPortErr, "IBV_EVENT_LID_CHANGE": EventLIDChange,
	"IBV_EVENT_PKEY_CHANGE": EventPKeyChange, "IBV_EVENT_SM_CHANGE": EventSMChange, "IBV_EVENT_SRQ_ERR": EventSRQErr,
	"IBV_EVENT_SRQ_LIMIT_REACHED": EventSRQLimitReached, "IBV_EVENT_QP_LAST_WQE_REACHED": EventQPLastWQEReached,
	"IBV_EVENT_CLIENT_REREGISTER": EventClientReregister, "IBV_EVENT_GID_CHANGE": EventGIDChange,
	"IBV_EVENT_WQ_FATAL": EventWQFatal, "IBV_EVENT_DEVICE_SPEED_CHANGE": EventDeviceSpeedChange,

	"IBV_NODE_UNKNOWN": NodeType(-1), "IBV_NODE_CA": NodeCA, "IBV_NODE_SWITCH": NodeType(2), "IBV_NODE_ROUTER": NodeType(3),
	"IBV_NODE_RNIC": NodeRNIC, "IBV_NODE_USNIC": NodeType(5), "IBV_NODE_USNIC_UDP": NodeType(6),
	"IBV_NODE_UNSPECIFIED": NodeType(7),

	"IBV_TRANSPORT_IB": TransportIB, "IBV_TRANSPORT_IWARP": TransportIWARP,

	"IBV_PORT_NOP": PortNop, "IBV_PORT_DOWN": PortDown, "IBV_PORT_INIT": PortInit, "IBV_PORT_ARMED": PortArmed,
	"IBV_PORT_ACTIVE": PortActive, "IBV_PORT_ACTIVE_DEFER": PortActiveDefer,

	"IBV_ATOMIC_NONE": AtomicNone, "IBV_ATOMIC_HCA": AtomicHCA, "IBV_ATOMIC_GLOB": AtomicGlob,

	"IBV_MTU_256": MTU(1), "IBV_MTU_512": MTU(2), "IBV_MTU_1024": MTU(3), "IBV_MTU_2048": MTU(4), "IBV_MTU_4096": MTU(5),
}

// notOurs are enumerators of C that stand for what this package does not have.
var notOurs = map[string]bool{
	"IBV_WR_TSO": true, "IBV_WR_DRIVER1": true, "IBV_WR_FLUSH": true, "IBV_WR_ATOMIC_WRITE": true, "IBV_SEND_IP_CSUM": true,
	"IBV_WC_TSO": true, "IBV_WC_FLUSH": true, "IBV_WC_ATOMIC_WRITE": true, "IBV_WC_TM_ADD": true, "IBV_WC_TM_DEL": true,
	"IBV_WC_TM_SYNC": true, "IBV_WC_TM_RECV": true, "IBV_WC_TM_NO_TAG": true, "IBV_WC_DRIVER1": true,
	"IBV_WC_DRIVER2": true, "IBV_WC_DRIVER3": true, "IBV_QPT_DRIVER": true, "IBV_QPS_UNKNOWN": true,
	"IBV_QP_ALT_PATH": true, "IBV_QP_PATH_MIG_STATE": true, "IBV_QP_RATE_LIMIT": true, "IBV_TRANSPORT_UNKNOWN": true,
	"IBV_TRANSPORT_USNIC": true, "IBV_TRANSPORT_USNIC_UDP": true, "IBV_TRANSPORT_UNSPECIFIED": true,
}

// enumLine is a line of the golden file.
type enumLine struct {
	name, text string
	value      int64
}

func readEnums(t *testing.T) []enumLine {
	t.Helper()
	f, err := os.Open("testdata/enums.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []enumLine
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		w := strings.SplitN(s.Text(), " ", 4)
		v, err := strconv.ParseInt(w[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, enumLine{name: w[1], value: v, text: strings.Join(w[3:], "")})
	}
	return lines
}

// parity(recorded): V21 S05
func TestEnumsEqualC(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range readEnums(t) {
		seen[l.name] = true
		v, ok := enums[l.name]
		if !ok {
			if !notOurs[l.name] {
				t.Errorf("%s: neither a constant nor left out on purpose", l.name)
			}
			continue
		}
		if got := fmt.Sprintf("%d", v); got != strconv.FormatInt(l.value, 10) {
			t.Errorf("%s: got %s, C has %d", l.name, got, l.value)
		}
		if got := fmt.Sprint(v); l.text != "" && got != l.text {
			t.Errorf("%s: got text %q, C has %q", l.name, got, l.text)
		}
	}
	for name := range enums {
		if !seen[name] {
			t.Errorf("%s: not in the golden file", name)
		}
	}
}

func TestUnknownEnumText(t *testing.T) {
	for _, v := range []fmt.Stringer{
		Opcode(10), Opcode(1 << 31), WCStatus(24), WCStatus(1 << 31), WCOp(10), EventType(21), NodeType(8),
		PortState(6), QPState(7), QPType(5), AtomicCap(3), TransportType(2),
	} {
		if got := v.String(); got != "unknown" {
			t.Errorf("%T(%d): got %q, want unknown", v, v, got)
		}
	}
}

func TestCounts(t *testing.T) {
	for _, c := range []struct {
		what      string
		got, want int
	}{
		{"statuses", NumWCStatus, 24}, // ibv_wc_status
		{"events", NumEventTypes, 21}, // ibv_event_type
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", c.what, c.got, c.want)
		}
	}
}

// The values are those that ibv_modify_qp(3) and the InfiniBand specification
// print for the RNR timer codes.
func TestRNRDelay(t *testing.T) {
	for code, want := range map[uint8]string{0: "655.36ms", 1: "10µs", 12: "640µs", 14: "1.28ms", 20: "10.24ms", 31: "491.52ms", 32: "655.36ms"} {
		if got := RNRDelay(code).String(); got != want {
			t.Errorf("code %d: got %s, want %s", code, got, want)
		}
	}
}

func TestMTUBytes(t *testing.T) {
	for code, want := range []int{0, 256, 512, 1024, 2048, 4096, 0} {
		if got := MTU(code).Bytes(); got != want {
			t.Errorf("code %d: got %d, want %d", code, got, want)
		}
	}
}
