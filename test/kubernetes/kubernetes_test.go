package kubernetes

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// kinds makes an object of each kind of the manifests.
var kinds = map[schema.GroupVersionKind]func() metav1.Object{
	corev1.SchemeGroupVersion.WithKind("Service"):    func() metav1.Object { return new(corev1.Service) },
	appsv1.SchemeGroupVersion.WithKind("Deployment"): func() metav1.Object { return new(appsv1.Deployment) },
	batchv1.SchemeGroupVersion.WithKind("Job"):       func() metav1.Object { return new(batchv1.Job) },
}

// documents returns the objects of a file. An unknown field, a field that comes twice, and a value of another type are errors, as for a server that
// validates strictly.
func documents(data []byte) (list []metav1.Object, err error) {
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return nil, err
		}
		create := kinds[kind.GroupVersionKind()]
		if create == nil {
			return nil, fmt.Errorf("the test knows no %v", kind.GroupVersionKind())
		}
		o := create()
		text, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return nil, err
		}
		strict, err := json.UnmarshalStrict(text, o)
		if err := errors.Join(append(strict, err)...); err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind.Kind, o.GetName(), err)
		}
		list = append(list, o)
	}
}

// TestManifests decodes the manifests into the types of Kubernetes' API, and checks the values that those types leave open.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "contrib", "kubernetes", "*.yaml"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		list, err := documents(data)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d objects, %v", file, len(list), err)
		}
		for _, o := range list {
			for _, fault := range faults(o) {
				t.Errorf("%s: %s: %s", file, o.GetName(), fault)
			}
		}
	}
}

// faults returns the values of an object that its types allow and a server refuses.
func faults(o metav1.Object) (list []string) {
	list = validation.IsDNS1123Label(o.GetName())
	for key, value := range o.GetLabels() {
		list = append(append(list, validation.IsQualifiedName(key)...), validation.IsValidLabelValue(value)...)
	}
	var pod *corev1.PodTemplateSpec
	switch o := o.(type) {
	case *corev1.Service:
		for _, p := range o.Spec.Ports {
			list = append(append(list, validation.IsValidPortName(p.Name)...), validation.IsValidPortNum(int(p.Port))...)
		}
		return list
	case *appsv1.Deployment:
		if _, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err != nil {
			list = append(list, err.Error())
		}
		if s := o.Spec.Strategy.Type; s != appsv1.RecreateDeploymentStrategyType && s != appsv1.RollingUpdateDeploymentStrategyType {
			list = append(list, fmt.Sprintf("strategy %q", s))
		}
		pod = &o.Spec.Template
	case *batchv1.Job:
		if p := o.Spec.Template.Spec.RestartPolicy; p != corev1.RestartPolicyNever && p != corev1.RestartPolicyOnFailure {
			list = append(list, fmt.Sprintf("restartPolicy %q of a job", p))
		}
		pod = &o.Spec.Template
	}
	for i := range pod.Spec.Containers {
		list = append(list, containerFaults(&pod.Spec.Containers[i])...)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		list = append(list, validation.IsDNS1123Label(v.Name)...)
		switch {
		case (v.EmptyDir == nil) == (v.Secret == nil):
			list = append(list, "volume "+v.Name+" has no source, or two")
		case v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumDefault && v.EmptyDir.Medium != corev1.StorageMediumMemory:
			list = append(list, fmt.Sprintf("medium %q", v.EmptyDir.Medium))
		}
	}
	return list
}

func containerFaults(c *corev1.Container) (list []string) {
	list = validation.IsDNS1123Label(c.Name)
	if !slices.Contains([]corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}, c.ImagePullPolicy) {
		list = append(list, fmt.Sprintf("imagePullPolicy %q", c.ImagePullPolicy))
	}
	for _, p := range c.Ports {
		list = append(append(list, validation.IsValidPortName(p.Name)...), validation.IsValidPortNum(int(p.ContainerPort))...)
		if p.Protocol != corev1.ProtocolTCP {
			list = append(list, fmt.Sprintf("protocol %q", p.Protocol))
		}
	}
	for name, most := range c.Resources.Limits {
		if least, ok := c.Resources.Requests[name]; ok && least.Cmp(most) > 0 {
			list = append(list, fmt.Sprintf("the request of %s is above its limit", name))
		}
	}
	return list
}

// TestFaults changes the manifest of a deployment in ways that a server refuses.
func TestFaults(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "contrib", "kubernetes", "cinnabar-mem.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"runAsNonRoot:": "runAsNonroot:", "replicas: 1": "replicas: one", "replicas: 1\n": "replicas: 1\n  replicas: 2\n", "memory: 1Gi": "memory: 1 Gi", "memory: 1Gi\n": "memory: 100Mi\n",
		"IfNotPresent": "IfAbsent", "type: Recreate": "type: Replace", "medium: Memory": "medium: RAM", "containerPort: 7000": "containerPort: 70000",
		"kind: Deployment": "kind: Deploymant", "name: rpc\n              containerPort": "name: Remote_Procedure\n              containerPort",
	} {
		text := strings.Replace(string(data), from, to, 1)
		if text == string(data) {
			t.Fatalf("the manifest has no %q", from)
		}
		list, err := documents([]byte(text))
		n := 0
		for _, o := range list {
			n += len(faults(o))
		}
		if err == nil && n == 0 {
			t.Errorf("%q instead of %q is no fault", to, from)
		}
	}
}
