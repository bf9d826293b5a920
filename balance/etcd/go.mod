module cinnabar/balance/etcd

go 1.26.0

require (
	cinnabar v0.0.0
	go.etcd.io/etcd/client/v3 v3.6.15
	go.uber.org/goleak v1.3.0
)

replace cinnabar => ../../
