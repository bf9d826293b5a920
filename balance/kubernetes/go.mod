module cinnabar/balance/kubernetes

go 1.26.0

require (
	cinnabar v0.0.0
	go.uber.org/goleak v1.3.0
)

require golang.org/x/sys v0.49.0 // indirect

replace cinnabar => ../../
