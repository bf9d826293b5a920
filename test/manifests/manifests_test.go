package manifests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// contrib returns the name of a file of contrib.
func contrib(names ...string) string {
	return filepath.Join(append([]string{"..", "..", "contrib"}, names...)...)
}

// The fields of Kubernetes' API that the manifests use, by the reference of its version 1.30. A field with another name fails the test.
type (
	object struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Metadata   metadata        `json:"metadata"`
		Spec       json.RawMessage `json:"spec"`
	}
	metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	}
	service struct { // v1 Service
		ClusterIP string            `json:"clusterIP"`
		Selector  map[string]string `json:"selector"`
		Ports     []struct {
			Name       string `json:"name"`
			Port       int32  `json:"port"`
			TargetPort any    `json:"targetPort"` // a number, or the name of a port
			Protocol   string `json:"protocol"`
		} `json:"ports"`
	}
	deployment struct { // apps/v1 Deployment
		Replicas int32 `json:"replicas"`
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		Strategy struct {
			Type string `json:"type"`
		} `json:"strategy"`
		Template template `json:"template"`
	}
	job struct { // batch/v1 Job
		BackoffLimit            int32    `json:"backoffLimit"`
		TTLSecondsAfterFinished int32    `json:"ttlSecondsAfterFinished"`
		Template                template `json:"template"`
	}
	template struct {
		Metadata metadata `json:"metadata"`
		Spec     pod      `json:"spec"`
	}
	pod struct {
		AutomountServiceAccountToken  *bool  `json:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int64  `json:"terminationGracePeriodSeconds"`
		RestartPolicy                 string `json:"restartPolicy"`
		SecurityContext               struct {
			RunAsNonRoot   bool  `json:"runAsNonRoot"`
			RunAsUser      int64 `json:"runAsUser"`
			RunAsGroup     int64 `json:"runAsGroup"`
			FSGroup        int64 `json:"fsGroup"`
			SeccompProfile struct {
				Type string `json:"type"`
			} `json:"seccompProfile"`
		} `json:"securityContext"`
		Containers []container `json:"containers"`
		Volumes    []volume    `json:"volumes"`
	}
	container struct {
		Name            string   `json:"name"`
		Image           string   `json:"image"`
		ImagePullPolicy string   `json:"imagePullPolicy"`
		Args            []string `json:"args"`
		Ports           []struct {
			Name          string `json:"name"`
			ContainerPort int32  `json:"containerPort"`
			Protocol      string `json:"protocol"`
		} `json:"ports"`
		StartupProbe   *probe `json:"startupProbe"`
		ReadinessProbe *probe `json:"readinessProbe"`
		LivenessProbe  *probe `json:"livenessProbe"`
		Resources      struct {
			Requests map[string]string `json:"requests"`
			Limits   map[string]string `json:"limits"`
		} `json:"resources"`
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `json:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `json:"readOnlyRootFilesystem"`
			Capabilities             struct {
				Drop []string `json:"drop"`
			} `json:"capabilities"`
		} `json:"securityContext"`
		VolumeMounts []struct {
			Name      string `json:"name"`
			MountPath string `json:"mountPath"`
			ReadOnly  bool   `json:"readOnly"`
		} `json:"volumeMounts"`
	}
	probe struct {
		Exec struct {
			Command []string `json:"command"`
		} `json:"exec"`
		PeriodSeconds    int32 `json:"periodSeconds"`
		TimeoutSeconds   int32 `json:"timeoutSeconds"`
		FailureThreshold int32 `json:"failureThreshold"`
	}
	volume struct {
		Name     string `json:"name"`
		EmptyDir *struct {
			Medium    string `json:"medium"`
			SizeLimit string `json:"sizeLimit"`
		} `json:"emptyDir"`
		Secret *struct {
			SecretName  string `json:"secretName"`
			DefaultMode int32  `json:"defaultMode"`
		} `json:"secret"`
	}
)

// strict decodes data into v, and fails the test for a field that v lacks.
func strict(t *testing.T, data []byte, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatal(err)
	}
}

// TestKubernetes decodes the manifests strictly, and checks what the schema of Kubernetes leaves open: labels that select, volumes that exist, pods without
// rights.
// parity: D22
func TestKubernetes(t *testing.T) {
	files, err := filepath.Glob(contrib("kubernetes", "*.yaml"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			docs, err := parseYAML(string(text))
			if err != nil {
				t.Fatal(err)
			}
			labels, selectors := map[string]string{}, []map[string]string{}
			for _, doc := range docs {
				data, err := json.Marshal(doc)
				if err != nil {
					t.Fatal(err)
				}
				var o object
				strict(t, data, &o)
				if !regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`).MatchString(o.Metadata.Name) {
					t.Errorf("the name %q is no label of DNS", o.Metadata.Name)
				}
				switch kind := o.APIVersion + " " + o.Kind; kind {
				case "v1 Service":
					var s service
					strict(t, o.Spec, &s)
					selectors = append(selectors, s.Selector)
				case "apps/v1 Deployment":
					var d deployment
					strict(t, o.Spec, &d)
					labels, selectors = d.Template.Metadata.Labels, append(selectors, d.Selector.MatchLabels)
					checkPod(t, d.Template.Spec)
					checkProbes(t, d.Template.Spec.Containers[0])
				case "batch/v1 Job":
					var j job
					strict(t, o.Spec, &j)
					checkPod(t, j.Template.Spec)
				default:
					t.Errorf("the test knows no %s", kind)
				}
			}
			for _, s := range selectors {
				for key, value := range s {
					if labels[key] != value {
						t.Errorf("no pod has the label %s: %s", key, value)
					}
				}
			}
		})
	}
}

// checkPod wants a pod that runs without rights, and has /dev/shm in memory.
func checkPod(t *testing.T, p pod) {
	t.Helper()
	if s := p.SecurityContext; !s.RunAsNonRoot || s.RunAsUser == 0 || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("the pod runs as %+v", s)
	}
	volumes := map[string]volume{}
	for _, v := range p.Volumes {
		volumes[v.Name] = v
	}
	if len(p.Containers) != 1 {
		t.Fatalf("%d containers", len(p.Containers))
	}
	c := p.Containers[0]
	if s := c.SecurityContext; s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("the container has %+v", s)
	}
	if c.Resources.Limits["memory"] == "" {
		t.Error("the container has no limit on memory, from which the command takes its own")
	}
	mounts := map[string]volume{}
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			t.Errorf("there is no volume %s", m.Name)
		}
		mounts[m.MountPath] = v
	}
	if v := mounts["/dev/shm"]; v.EmptyDir == nil || v.EmptyDir.Medium != "Memory" || v.EmptyDir.SizeLimit == "" {
		t.Error("/dev/shm is not in memory, or has no limit")
	}
	if mounts["/tmp"].EmptyDir == nil {
		t.Error("there is no /tmp, where na+sm has its sockets")
	}
}

// checkProbes wants three probes that ping the port of the container.
func checkProbes(t *testing.T, c container) {
	t.Helper()
	address := c.Args[len(c.Args)-1]
	if want := fmt.Sprintf(":%d", c.Ports[0].ContainerPort); !strings.HasSuffix(address, want) {
		t.Errorf("the command listens at %s, and the port is %s", address, want)
	}
	for _, p := range []*probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p == nil {
			t.Fatal("a probe is missing")
		}
		cmd := p.Exec.Command
		if len(cmd) < 3 || cmd[0] != "/cinnabar" || cmd[1] != "ping" || cmd[len(cmd)-1] != strings.Replace(address, "0.0.0.0", "127.0.0.1", 1) {
			t.Errorf("the probe runs %q", cmd)
		}
		if p.TimeoutSeconds < 3 || p.PeriodSeconds < 1 {
			t.Errorf("%+v, and ping has 2 s", p)
		}
	}
}

// TestContainerfile wants an image from nothing, with a user that is not root and files that the build script provides.
func TestContainerfile(t *testing.T) {
	text, err := os.ReadFile(contrib("container", "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(contrib("container", "build"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "", "#":
		case "COPY":
			if from, _, _ := strings.Cut(rest, " "); !strings.Contains(string(script), from) {
				t.Errorf("the script provides no %s", from)
			}
		case "FROM", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD":
			seen[word] = rest
		default:
			t.Errorf("%s needs a network or a process", word)
		}
	}
	if seen["FROM"] != "scratch" || !regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*$`).MatchString(seen["USER"]) || seen["STOPSIGNAL"] != "SIGTERM" {
		t.Errorf("%q", seen)
	}
	for _, word := range []string{"ENTRYPOINT", "CMD"} {
		var list []string
		if err := json.Unmarshal([]byte(seen[word]), &list); err != nil || len(list) == 0 {
			t.Errorf("%s %s: %v", word, seen[word], err)
		}
	}
}
