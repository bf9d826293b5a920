// Package kubernetes checks the manifests of contrib/kubernetes against the types of Kubernetes' API, which have dependencies of their own.
package kubernetes
