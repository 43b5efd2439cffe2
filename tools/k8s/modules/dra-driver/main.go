// Command dra-driver is Kubernetes' own test driver for dynamic resource allocation, built on the library of real drivers.
// Its own command publishes devices without attributes, among which no selector could choose: these have a model.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resource "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	metadata "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/kubernetes/test/e2e/dra/test-driver/app"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "where the cluster is")
	name := flag.String("name", "", "the driver's name")
	node := flag.String("node", "", "the machine's name")
	root := flag.String("root", "/var/lib/kubelet", "the kubelet's folder")
	specs := flag.String("cdi", "/var/run/cdi", "where the container runtime looks for devices")
	models := flag.String("models", "", "one for each device, with commas between")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *kubeconfig, *name, *node, *root, *specs, strings.Split(*models, ",")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, name, node, root, specs string, models []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(root, "plugins", name)
	for _, folder := range []string{data, specs} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
	}
	devices := make([]resource.Device, len(models))
	for number, model := range models {
		attributes := map[resource.QualifiedName]resource.DeviceAttribute{"model": {StringValue: &model}}
		devices[number] = resource.Device{Name: fmt.Sprintf("gpu-%d", number), Attributes: attributes}
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	published := &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
	plugin, err := app.StartPlugin(ctx, specs, name, client, node, app.FileOperations{DriverResources: published},
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(root, "plugins_registry")),
		kubeletplugin.CDIDirectory(specs),
		kubeletplugin.EnableDeviceMetadata(true), // a file in the container that names its devices
		kubeletplugin.MetadataVersions(metadata.SchemeGroupVersion),
	)
	if err != nil {
		return err
	}
	log.Print("its plugin runs")
	<-ctx.Done()
	plugin.Stop()
	return nil
}
