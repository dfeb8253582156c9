package talosim

import (
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"freehold.dev/freehold/internal/talosim/kubeapi"
)

// pod is one that Talos itself brings to a cluster.
type pod struct {
	name, node, image, ip string
	labels                map[string]string
}

// podsOf lists what runs on a machine: static pods on a control plane, kube-proxy and flannel unless they are off.
func podsOf(v view, cfg config.Provider) []pod {
	ip := v.addr.String()
	var list []pod
	add := func(name, image string, labels map[string]string) {
		list = append(list, pod{name: name, node: v.hostname, image: image, ip: ip, labels: labels})
	}
	if v.apiserver {
		for name, image := range map[string]string{
			"kube-apiserver":          cfg.Cluster().APIServer().Image(),
			"kube-controller-manager": cfg.Cluster().ControllerManager().Image(),
			"kube-scheduler":          cfg.Cluster().Scheduler().Image(),
		} {
			add(name+"-"+v.hostname, image, map[string]string{"k8s-app": name, "tier": "control-plane", "component": name})
		}
	}
	suffix := stableHostname(v.nodeID)[6:]
	if cfg.Cluster().Proxy().Enabled() {
		add("kube-proxy-"+suffix, cfg.Cluster().Proxy().Image(), map[string]string{"k8s-app": "kube-proxy", "tier": "node"})
	}
	if cfg.Cluster().Network().CNI().Name() == constants.FlannelCNI {
		add("kube-flannel-"+suffix, "ghcr.io/siderolabs/flannel:"+constants.FlannelVersion, map[string]string{"k8s-app": "flannel", "tier": "node"})
	}
	return list
}

// reconcilePods keeps the pods of machines whose Node is ready, and removes those whose Node is gone.
func (c *cluster) reconcilePods(views []view, now time.Time) {
	nodes := map[string]bool{}
	for _, o := range c.kube.List(kubeapi.Nodes, "") {
		nodes[o.GetName()] = kubeapi.Condition(o, "Ready") == "True"
	}
	dns := 0
	for _, o := range c.kube.List(kubeapi.Pods, "") {
		if _, ok := nodes[kubeapi.String(o, "spec", "nodeName")]; !ok {
			c.kube.Delete(kubeapi.Pods, o.GetNamespace(), o.GetName())
		} else if o.GetLabels()["k8s-app"] == "kube-dns" {
			dns++
		}
	}
	for _, v := range views {
		if !v.online || !nodes[v.hostname] {
			continue
		}
		cfg, _ := v.session.config()
		for _, p := range podsOf(v, cfg) {
			c.putPod(p, now)
		}
		if dns < 2 && cfg.Cluster().CoreDNS().Enabled() {
			dns++
			c.putPod(pod{
				name: fmt.Sprintf("coredns-7bb49dc74c-%s", stableHostname(v.nodeID)[6:]), node: v.hostname, image: cfg.Cluster().CoreDNS().Image(),
				ip: fmt.Sprintf("10.244.%d.2", dns-1), labels: map[string]string{"k8s-app": "kube-dns", "pod-template-hash": "7bb49dc74c"},
			}, now)
		}
	}
}

func (c *cluster) putPod(p pod, now time.Time) {
	const ns = "kube-system"
	if old, ok := c.kube.Get(kubeapi.Pods, ns, p.name); ok {
		containers, _ := old.Object["spec"].(map[string]any)["containers"].([]any)
		if len(containers) == 1 && containers[0].(map[string]any)["image"] == p.image {
			return
		}
	}
	o := kubeapi.NewObject(kubeapi.Pods, ns, p.name)
	o.SetLabels(p.labels)
	name := p.labels["k8s-app"]
	at := now.UTC().Format(time.RFC3339)
	o.Object["spec"] = map[string]any{
		"nodeName": p.node, "containers": []any{map[string]any{"name": name, "image": p.image}}, "restartPolicy": "Always",
	}
	o.Object["status"] = map[string]any{
		"phase": "Running", "podIP": p.ip, "startTime": at,
		"podIPs": []any{map[string]any{"ip": p.ip}},
		"containerStatuses": []any{map[string]any{
			"name": name, "image": p.image, "ready": true, "started": true, "restartCount": int64(0),
			"state": map[string]any{"running": map[string]any{"startedAt": at}},
		}},
	}
	for _, cond := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		kubeapi.SetCondition(o, cond, "True", "", "", now)
	}
	c.kube.Put(kubeapi.Pods, o)
}
