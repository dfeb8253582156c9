package talosim

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"freehold.dev/freehold/internal/talosim/kubeapi"
)

// nodeState is what a machine cares about in its Node.
type nodeState struct {
	ready, unschedulable bool
	labels, annotations  map[string]string
}

// node reads the session's Node.
func (s *session) node() (nodeState, bool) {
	s.m.mu.Lock()
	c, name := s.cluster, s.hostname
	s.m.mu.Unlock()
	if c == nil {
		return nodeState{}, false
	}
	o, ok := c.kube.Get(kubeapi.Nodes, "", name)
	if !ok {
		return nodeState{}, false
	}
	return nodeState{
		ready: kubeapi.Condition(o, "Ready") == "True", unschedulable: kubeapi.Bool(o, "spec", "unschedulable"),
		labels: kubeapi.Strings(o, "metadata", "labels"), annotations: kubeapi.Strings(o, "metadata", "annotations"),
	}, true
}

// reconcileNodes takes the Nodes one step nearer to their machines, and tells when the next step is due (zero: when
// something changes).
func (c *cluster) reconcileNodes(now time.Time) time.Time {
	views := c.views()
	if !c.serving(views) {
		c.pending = map[string]time.Time{}
		return time.Time{}
	}
	timing := c.sim.timing
	var next time.Time
	used := map[string]bool{}
	// due starts a timer of a node's transition, or tells that it ran out.
	due := func(key string, after time.Duration) bool {
		used[key] = true
		at, ok := c.pending[key]
		if !ok {
			at = now.Add(after)
			c.pending[key] = at
		}
		if !at.After(now) {
			delete(c.pending, key)
			return true
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
		return false
	}
	alive := map[string]bool{}
	for _, v := range views {
		if !v.kubelet || !v.online {
			continue
		}
		alive[v.hostname] = true
		o, ok := c.kube.Get(kubeapi.Nodes, "", v.hostname)
		if !ok {
			if !due("register/"+v.hostname, timing.NodeRegister) {
				continue
			}
			o = c.newNode(v, now)
			c.kube.Put(kubeapi.Nodes, o)
		}
		if c.updateNode(o, v) {
			c.kube.Put(kubeapi.Nodes, o)
		}
		if kubeapi.Condition(o, "Ready") != "True" && due("ready/"+v.hostname, timing.NodeReady) {
			setReady(o, "True", "KubeletReady", "kubelet is posting ready status", now)
			c.kube.Put(kubeapi.Nodes, o)
		}
		if at := c.pending["ready/"+v.hostname]; kubeapi.Condition(o, "Ready") != "True" && at.IsZero() {
			due("ready/"+v.hostname, timing.NodeReady)
		}
	}
	for _, o := range c.kube.List(kubeapi.Nodes, "") {
		name := o.GetName()
		if alive[name] || kubeapi.Condition(o, "Ready") != "True" {
			continue
		}
		if due("lost/"+name, timing.NodeLost) {
			setReady(o, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now)
			c.kube.Put(kubeapi.Nodes, o)
		}
	}
	c.reconcilePods(views, now)
	for key := range c.pending {
		if !used[key] {
			delete(c.pending, key)
		}
	}
	return next
}

func (c *cluster) newNode(v view, now time.Time) kubeapi.Object {
	o := kubeapi.NewObject(kubeapi.Nodes, "", v.hostname)
	o.Object["spec"] = map[string]any{}
	status := map[string]any{
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": int64(constants.KubeletPort)}},
	}
	o.Object["status"] = status
	if v.role.IsControlPlane() {
		cfg, _ := v.session.config()
		if !cfg.Cluster().ScheduleOnControlPlanes() {
			o.Object["spec"] = map[string]any{"taints": []any{map[string]any{"key": constants.LabelNodeRoleControlPlane, "effect": "NoSchedule"}}}
		}
	}
	for _, cond := range [][3]string{
		{"MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
		{"DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		{"PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"},
	} {
		kubeapi.SetCondition(o, cond[0], "False", cond[1], cond[2], now)
	}
	setReady(o, "False", "KubeletNotReady", "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized", now)
	return o
}

func setReady(o kubeapi.Object, status, reason, message string, now time.Time) {
	kubeapi.SetCondition(o, "Ready", status, reason, message, now)
}

// updateNode brings what the kubelet and Talos keep on a Node up to date, and tells whether anything changed.
func (c *cluster) updateNode(o kubeapi.Object, v view) bool {
	cfg, _ := v.session.config()
	v.m.mu.Lock()
	rec := v.m.rec
	v.m.mu.Unlock()
	labels := map[string]string{
		"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
		"kubernetes.io/hostname": v.hostname,
	}
	if v.role.IsControlPlane() {
		labels[constants.LabelNodeRoleControlPlane] = ""
	}
	maps.Copy(labels, cfg.Machine().NodeLabels())
	kubelet := kubeletVersion(cfg.Machine().Kubelet().Image())
	info := map[string]any{
		"machineID": strings.ReplaceAll(uuid.NewSHA1(uuid.NameSpaceOID, []byte(v.nodeID)).String(), "-", ""), "systemUUID": rec.UUID, "bootID": v.session.bootID,
		"kernelVersion": constants.DefaultKernelVersion, "osImage": fmt.Sprintf("Talos (%s)", v.version),
		"containerRuntimeVersion": "containerd://" + constants.DefaultContainerdVersion, "kubeletVersion": kubelet, "kubeProxyVersion": "",
		"operatingSystem": "linux", "architecture": "amd64",
	}
	resources := map[string]any{
		"cpu": fmt.Sprint(rec.Cores), "memory": fmt.Sprintf("%dMi", rec.MemoryMiB), "pods": "110", "ephemeral-storage": fmt.Sprintf("%dGi", rec.DiskGiB),
	}
	changed := kubeapi.MergeLabels(o, labels)
	changed = kubeapi.MergeAnnotations(o, cfg.Machine().NodeAnnotations()) || changed
	for _, f := range []struct {
		value any
		path  []string
	}{
		{info, []string{"status", "nodeInfo"}},
		{resources, []string{"status", "capacity"}},
		{resources, []string{"status", "allocatable"}},
		{[]any{
			map[string]any{"type": "InternalIP", "address": v.addr.String()},
			map[string]any{"type": "Hostname", "address": v.hostname},
		}, []string{"status", "addresses"}},
	} {
		changed = kubeapi.Set(o, f.value, f.path...) || changed
	}
	return changed
}

// kubeletVersion is the version of the kubelet's image, with its "v".
func kubeletVersion(image string) string {
	if tag, ok := imageTag(image); ok {
		return tag
	}
	return "v" + constants.DefaultKubernetesVersion
}
