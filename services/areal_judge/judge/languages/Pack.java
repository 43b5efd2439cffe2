import java.io.File;
import java.io.IOException;
import java.lang.reflect.Modifier;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.Attributes;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.jar.Manifest;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

/** Compiles one source file, whatever its public class is called, into program.jar: compiler and packer in one machine. */
public class Pack {
    static class Source extends SimpleJavaFileObject {
        private final String text;

        Source(String text) {
            super(URI.create("string:///Main.java"), Kind.SOURCE);
            this.text = text;
        }

        @Override
        public CharSequence getCharContent(boolean ignoreEncodingErrors) {
            return text;
        }

        @Override
        public boolean isNameCompatible(String simpleName, Kind kind) {
            return true;
        }
    }

    public static void main(String[] arguments) throws Exception {
        String text = new String(Files.readAllBytes(Path.of(arguments[0])), StandardCharsets.UTF_8);
        Path classes = Files.createDirectory(Path.of("classes"));
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        DiagnosticCollector<JavaFileObject> told = new DiagnosticCollector<>();
        List<String> options = List.of("-proc:none", "-nowarn", "-Xlint:none", "-d", "classes");
        boolean good = compiler.getTask(null, null, told, options, null, List.of(new Source(text))).call();
        if (!good) {
            told.getDiagnostics().stream()
                .filter(one -> one.getKind() == javax.tools.Diagnostic.Kind.ERROR)
                .limit(5)
                .forEach(one -> System.err.println("Main.java:" + one.getLineNumber() + ": error: " + one.getMessage(null)));
            System.exit(1);
        }
        List<Path> made;
        try (Stream<Path> walk = Files.walk(classes)) {
            made = walk.filter(Files::isRegularFile).sorted().collect(Collectors.toList());
        }
        Manifest manifest = new Manifest();
        manifest.getMainAttributes().put(Attributes.Name.MANIFEST_VERSION, "1.0");
        manifest.getMainAttributes().put(Attributes.Name.MAIN_CLASS, mainClass(classes, made));
        try (JarOutputStream jar = new JarOutputStream(Files.newOutputStream(Path.of("program.jar")), manifest)) {
            jar.setLevel(0);
            for (Path file : made) {
                jar.putNextEntry(new JarEntry(classes.relativize(file).toString()));
                Files.copy(file, jar);
                jar.closeEntry();
            }
        }
    }

    /** The class with `main`: Main where there are several. Classes are loaded, never initialised: none of their code runs. */
    private static String mainClass(Path classes, List<Path> made) throws IOException {
        String found = null;
        try (URLClassLoader loader = new URLClassLoader(new URL[] {classes.toUri().toURL()}, null)) {
            for (Path file : made) {
                String path = classes.relativize(file).toString();
                String name = path.substring(0, path.length() - ".class".length()).replace(File.separatorChar, '.');
                try {
                    int modifiers = Class.forName(name, false, loader).getMethod("main", String[].class).getModifiers();
                    boolean better = found == null || name.equals("Main") || name.endsWith(".Main");
                    found = Modifier.isStatic(modifiers) && better ? name : found;
                } catch (ReflectiveOperationException | LinkageError none) {
                    continue;
                }
            }
        }
        if (found == null) {
            System.err.println("Main.java: error: no class has a method public static void main(String[])");
            System.exit(1);
        }
        return found;
    }
}
