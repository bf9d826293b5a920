package ofiverbs

import (
	"context"

	"cinnabar/internal/na"
	"cinnabar/verbs"
)

// Device opens endpoints of this package on a device of package verbs. It implements [na.Device].
type Device struct{ Verbs *verbs.Device }

var _ na.Device = Device{}

// OpenEndpoint implements [na.Device].
func (d Device) OpenEndpoint(ctx context.Context, cfg na.DeviceConfig) (na.Endpoint, error) {
	e, err := Open(ctx, Config{
		Device: d.Verbs, Address: cfg.Address, Subnet: cfg.Subnet, Firewalled: cfg.Firewalled, Listen: cfg.Listen, Handler: cfg.Handler, Logger: cfg.Logger, Progress: cfg.Progress,
		MaxRequest: cfg.MaxRequest, MaxResponse: cfg.MaxResponse, DialTimeout: cfg.DialTimeout, DialRetry: cfg.DialRetry, Resolver: cfg.Resolver,
		KeepAlive: cfg.KeepAlive, SendTimeout: cfg.SendTimeout, LateAccess: cfg.LateAccess,
		RegCacheBytes: cfg.RegCacheBytes, Admit: cfg.Admit, Quota: cfg.Quota, Audit: cfg.Audit,
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}
