// Enforces the NetworkPolicies of one namespace on the node where it runs, for a pod network that enforces none.
//
// The kernel asks it about the first packet of each connection between pods (NFQUEUE). It answers with what
// cyclonus computes from the policies: the library that network plugins are tested against. The rules are in
// a table that nothing else uses, and are removed when it ends.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	"github.com/mdlayher/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// From linux/netfilter/nfnetlink_queue.h.
const (
	netlinkNetfilter = 12
	queueNumber      = 29400
	messagePacket    = 3<<8 | 0
	messageVerdict   = 3<<8 | 1
	messageConfig    = 3<<8 | 2
	packetHeader     = 1  // attribute of a packet
	packetPayload    = 10 // attribute of a packet
	verdictHeader    = 2  // attribute of a verdict
	configCommand    = 1  // attribute of a configuration
	configParameters = 2  // attribute of a configuration
	commandBind      = 1
	copyPacket       = 2
	copyBytes        = 128 // IP header with options, and the ports
	drop, accept     = 0, 1
)

var protocols = map[byte]corev1.Protocol{6: corev1.ProtocolTCP, 17: corev1.ProtocolUDP, 132: corev1.ProtocolSCTP}

type cluster struct {
	pods       cache.Indexer
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "credentials that may list pods, namespaces and policies")
	namespace := flag.String("namespace", "", "the namespace whose policies are enforced")
	podNetwork := flag.String("pod-network", "", "the addresses of all pods, such as 10.244.0.0/16")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	seen := watch(ctx, *kubeconfig, *namespace)
	queue := open()
	remove := intercept(*podNetwork)
	go func() {
		<-ctx.Done()
		remove()
		os.Exit(0)
	}()
	for {
		messages, err := queue.Receive()
		if err != nil { // such as: more packets than the socket holds; their senders repeat them
			log.Print(err)
		}
		for _, message := range messages {
			if message.Header.Type == messagePacket {
				answer(queue, message.Data, seen)
			}
		}
	}
}

// watch returns when the cache has all objects.
func watch(ctx context.Context, kubeconfig, namespace string) *cluster {
	config := must(clientcmd.BuildConfigFromFlags("", kubeconfig))
	client := must(kubernetes.NewForConfig(config))
	all := informers.NewSharedInformerFactory(client, 0)
	one := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	pods := all.Core().V1().Pods().Informer()
	check(pods.AddIndexers(cache.Indexers{"address": addresses}))
	seen := &cluster{
		pods:       pods.GetIndexer(),
		namespaces: all.Core().V1().Namespaces().Lister(),
		policies:   one.Networking().V1().NetworkPolicies().Lister(),
	}
	for _, factory := range []informers.SharedInformerFactory{all, one} {
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	return seen
}

// addresses has the address of a pod that is its own: not its node's, nor free for other pods again.
func addresses(object any) ([]string, error) {
	pod := object.(*corev1.Pod)
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if pod.Spec.HostNetwork || ended || pod.Status.PodIP == "" {
		return nil, nil
	}
	return []string{pod.Status.PodIP}, nil
}

func open() *netlink.Conn {
	queue := must(netlink.Dial(netlinkNetfilter, nil))
	parameters := binary.BigEndian.AppendUint32(nil, copyBytes)
	must(queue.Execute(message(messageConfig, netlink.Request|netlink.Acknowledge,
		netlink.Attribute{Type: configCommand, Data: []byte{commandBind, 0, 0, 0}},
		netlink.Attribute{Type: configParameters, Data: append(parameters, copyPacket)},
	)))
	return queue
}

// intercept sends the first packet of each connection to a pod to our queue. Nothing from the node itself
// passes FORWARD, so a kubelet's probes are never asked about.
func intercept(podNetwork string) (remove func()) {
	rule := strings.Fields("FORWARD -t mangle -w -d " + podNetwork +
		" -m conntrack --ctstate NEW -j NFQUEUE --queue-bypass --queue-num 29400")
	must(exec.Command("iptables", append([]string{"-I"}, rule...)...).Output())
	return func() { must(exec.Command("iptables", append([]string{"-D"}, rule...)...).Output()) }
}

func answer(queue *netlink.Conn, data []byte, seen *cluster) {
	var id uint32
	verdict := uint32(drop)
	for _, attribute := range must(netlink.UnmarshalAttributes(data[4:])) {
		switch attribute.Type {
		case packetHeader:
			id = binary.BigEndian.Uint32(attribute.Data)
		case packetPayload:
			if seen.allow(attribute.Data) {
				verdict = accept
			}
		}
	}
	body := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, verdict), id)
	must(queue.Send(message(messageVerdict, netlink.Request, netlink.Attribute{Type: verdictHeader, Data: body})))
}

// allow is whether all policies permit an IPv4 packet.
func (seen *cluster) allow(packet []byte) bool {
	ports := int(packet[0]&0xf) * 4
	protocol, known := protocols[packet[9]]
	if packet[0]>>4 != 4 || !known {
		return true
	}
	port := int(binary.BigEndian.Uint16(packet[ports+2:]))
	source, _ := seen.peer(packet[12:16])
	target, pod := seen.peer(packet[16:20])
	traffic := &matcher.Traffic{Source: source, Destination: target, ResolvedPort: port, Protocol: protocol}
	if pod != nil {
		traffic.ResolvedPortName = portName(pod, port, protocol)
	}
	policies := must(seen.policies.List(labels.Everything()))
	return matcher.BuildNetworkPolicies(false, policies).IsTrafficAllowed(traffic).IsAllowed()
}

// peer is one end of a connection. An address that no pod has is outside of the cluster.
func (seen *cluster) peer(address []byte) (*matcher.TrafficPeer, *corev1.Pod) {
	ip, _ := netip.AddrFromSlice(address)
	peer := &matcher.TrafficPeer{IP: ip.String()}
	found := must(seen.pods.ByIndex("address", peer.IP))
	if len(found) == 0 {
		return peer, nil
	}
	pod := found[0].(*corev1.Pod)
	peer.Internal = &matcher.InternalPeer{PodLabels: pod.Labels, Namespace: pod.Namespace}
	if namespace, err := seen.namespaces.Get(pod.Namespace); err == nil {
		peer.Internal.NamespaceLabels = namespace.Labels
	}
	return peer, pod
}

func portName(pod *corev1.Pod, number int, protocol corev1.Protocol) string {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if int(port.ContainerPort) == number && port.Protocol == protocol {
				return port.Name
			}
		}
	}
	return ""
}

func message(kind netlink.HeaderType, flags netlink.HeaderFlags, attributes ...netlink.Attribute) netlink.Message {
	header := binary.BigEndian.AppendUint16([]byte{syscall.AF_UNSPEC, 0}, queueNumber)
	data := append(header, must(netlink.MarshalAttributes(attributes))...)
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: flags}, Data: data}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
