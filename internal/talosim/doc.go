// Package talosim simulates whole Talos machines at the wire: the maintenance API, the secured machine API with
// mutual TLS from the applied config's own CA, COSI resources, installation, reboot, reset and upgrade, etcd
// membership, and on control planes a Kubernetes API with the cluster's own PKI. Many machines live in one process,
// each on its own loopback address with Talos' real ports.
//
// # What is as in Talos
//
// Messages, types and resources are the machinery's own. Configs are validated with it, in metal mode, against the
// simulated disk /dev/sda; whether a change needs a reboot is decided by Talos' list of fields. Between maintenance and
// the secured API the port is closed. A worker's API opens only once a control plane with the same CA and token runs.
// Roles come from the client certificate; machine configs are for os:admin. A control plane calls on behalf of a
// client the machines named in its metadata, a worker does not. Control planes stay booting, their etcd Preparing,
// until one of them is bootstrapped; then they join one by one as learners. Members outlive their machines: a machine
// that is lost or wiped without grace counts against quorum until its member is removed or replaced by a joining
// machine of the same name; the last member cannot leave. Without quorum the Kubernetes API answers errors and is not
// ready. Kubernetes Nodes outlive their machines, as they do in a real cluster.
//
// # What is not
//
//   - Nothing runs: no kubelet, no scheduler, no controllers but the one for Nodes and Talos' own pods. Objects of the
//     Kubernetes API are stored as they come, without defaults, validation, admission or RBAC: system:masters may
//     do everything, others may read health, version and discovery. Without a CNI the Nodes become Ready all the same.
//   - etcd is a list of members and one shared store; there is no log, no election and no client port. A second
//     bootstrap of a cluster is refused, where Talos would make a second etcd.
//   - A machine has one link and one address, in 127.0.0.0/8. Network settings of its config, virtual addresses among
//     them, are accepted and have no effect, except for the host name.
//   - A dropped network is simulated above TCP: connections are accepted and stay silent.
//   - The authority of a running machine is not rotated in place: it is in force after the next boot.
//   - RPCs about files, packets, images and cgroups are Unimplemented or empty; META is not kept.
package talosim
