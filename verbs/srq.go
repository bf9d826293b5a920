package verbs

// SRQConfig is the configuration of a shared receive queue.
type SRQConfig struct {
	MaxWR  int // depth; 0: 128 or the device's limit if that is less
	MaxSGE int // scatter entries of one request; 0: 4 or the device's limit
	Limit  int // raise EventSRQLimitReached once when fewer receives are posted; 0: never
}

// SRQ is a shared receive queue: receives that any of its queue pairs may
// consume. All methods are safe for concurrent use.
type SRQ struct {
	pd  *PD
	drv SRQDriver
	dependents
}

// CreateSRQ makes a shared receive queue. A limit of the device that cfg exceeds
// is named in the error.
func (pd *PD) CreateSRQ(cfg SRQConfig) (*SRQ, error) {
	const op = "create shared receive queue"
	attr, err := pd.dev.limits()
	if err != nil {
		return nil, err
	}
	cfg.MaxWR = orDefault(cfg.MaxWR, defaultDepth, attr.MaxSRQWR)
	cfg.MaxSGE = orDefault(cfg.MaxSGE, defaultSGE, attr.MaxSRQSGE)
	if err := cfg.check(op, attr); err != nil {
		return nil, err
	}
	if err := pd.addDependent(childSRQ, op, "protection domain"); err != nil {
		return nil, err
	}
	s := &SRQ{pd: pd}
	s.drv, err = pd.drv.CreateSRQ(SRQInit{MaxWR: cfg.MaxWR, MaxSGE: cfg.MaxSGE, Limit: cfg.Limit, Context: s})
	if err != nil {
		pd.removeDependent(childSRQ)
		return nil, err
	}
	return s, nil
}

// check compares the configuration with the device's limits.
func (cfg *SRQConfig) check(op string, attr *DeviceAttr) error {
	if err := checkLimit(op, "MaxWR", cfg.MaxWR, 1, attr.MaxSRQWR, "MaxSRQWR"); err != nil {
		return err
	}
	if err := checkLimit(op, "MaxSGE", cfg.MaxSGE, 0, attr.MaxSRQSGE, "MaxSRQSGE"); err != nil {
		return err
	}
	if cfg.Limit < 0 || cfg.Limit > cfg.MaxWR {
		return Errorf(op, ErrInvalid, "Limit is %d, outside 0 to MaxWR, %d", cfg.Limit, cfg.MaxWR)
	}
	return nil
}

// PostRecv posts receives in order and returns how many were accepted; the
// error, if any, is about wrs[n]. It neither blocks nor allocates.
func (s *SRQ) PostRecv(wrs []RecvWR) (n int, err error) { return s.drv.PostRecv(wrs) }

// SetLimit arms EventSRQLimitReached for the moment when fewer than limit
// receives are posted; 0 disarms it. The event comes once per SetLimit.
func (s *SRQ) SetLimit(limit int) error {
	return s.drv.Modify(SRQAttr{Limit: limit}, true, false)
}

// Resize changes the depth where the device can do so.
func (s *SRQ) Resize(depth int) error {
	return s.drv.Modify(SRQAttr{MaxWR: depth}, false, true)
}

// Query returns depth and limit as they are now; a limit that was reached is 0.
func (s *SRQ) Query() SRQAttr { return s.drv.Query() }

// Close releases the queue. It fails with [ErrBusy] while queue pairs use it. A
// second Close does nothing.
func (s *SRQ) Close() error {
	return s.closeUnlessBusy("close shared receive queue", func() error {
		if err := s.drv.Close(); err != nil {
			return err
		}
		s.pd.removeDependent(childSRQ)
		return nil
	})
}
