// The part of the tab that must be Java: classes that Spark's UI accepts. The Janino compiler, which Spark includes,
// compiles them when the tab is attached. The style is old because Janino supports neither lambdas nor the inference of
// type arguments. All decisions are made in Python; only text passes between the two sides (see request.py).
package bkheal.ui;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.URLEncoder;
import java.util.Enumeration;
import java.util.function.Function;

import jakarta.servlet.ServletRequest;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.UIUtils;
import org.apache.spark.ui.WebUIPage;
import org.apache.spark.ui.WebUITab;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;
import scala.xml.Unparsed;

public class AuditorTab {
    static final String NAME = "Auditor";
    static final String PREFIX = "auditor";
    static final String API = "/auditor/api";
    static final int BODY_MAX = 4096;
    static final String[] HEADERS = {
        "host", "origin", "referer", "sec-fetch-site", "sec-purpose", "purpose", "x-moz", "content-type", "accept",
        "x-csrf-token", "x-forwarded-host", "x-forwarded-for", "transfer-encoding",
    };
    static final String[] FORM = {"token", "kind"};

    static final String PROXY_BASE = "spark.ui.proxyBase";

    private SparkUI ui;
    private Tab tab;
    private boolean isBaseOurs;

    /** Shows the tab. If its path is already taken, this throws and changes nothing. */
    public void attach(
            SparkUI sparkUi, Function page, Function api, String key, String proxyBase, String userHeader, String proxies)
            throws IOException {
        Trust trust = new Trust(userHeader, proxies);
        Iterator tabs = sparkUi.getTabs().iterator();
        while (tabs.hasNext()) {
            if (PREFIX.equals(((WebUITab) tabs.next()).prefix())) {
                throw new IllegalStateException("a tab at /" + PREFIX + " exists already");
            }
        }
        Tab made = new Tab(sparkUi, page, key, trust);
        sparkUi.attachHandler(API, new Api(sparkUi, api, key, trust), "/*");
        try {
            sparkUi.attachTab(made);
        } catch (RuntimeException failure) {
            sparkUi.detachHandler(API);
            throw failure;
        }
        // Spark's own links begin with this property. A value that was configured in Spark is not changed.
        if (proxyBase.length() > 0 && System.getProperty(PROXY_BASE) == null) {
            System.setProperty(PROXY_BASE, proxyBase);
            isBaseOurs = true;
        }
        ui = sparkUi;
        tab = made;
    }

    /** Removes the tab. */
    public void detach() {
        if (ui != null) {
            ui.detachTab(tab);
            ui.detachHandler(API);
            if (isBaseOurs) {
                System.clearProperty(PROXY_BASE);
            }
            ui = null;
        }
    }

    /** Returns the parts of a request that Python needs, as a query string. */
    static String facts(SparkUI ui, HttpServletRequest request, String key, Trust trust) throws IOException {
        StringBuilder out = new StringBuilder();
        String user = user(request);
        if (user == null) {
            user = trust.user(request);
        }
        put(out, "key", key);
        put(out, "method", request.getMethod());
        put(out, "path", request.getPathInfo());
        put(out, "base", UIUtils.prependBaseUri(request, ui.basePath(), ""));
        put(out, "user", user);
        put(out, "address", request.getRemoteAddr());
        put(out, "may_modify", String.valueOf(ui.securityManager().checkModifyPermissions(user)));
        put(out, "length", String.valueOf(request.getContentLengthLong()));
        for (int i = 0; i < HEADERS.length; i++) {
            put(out, "header." + HEADERS[i], request.getHeader(HEADERS[i]));
        }
        if ("POST".equals(request.getMethod())) {
            String type = String.valueOf(request.getContentType());
            if (type.startsWith("application/x-www-form-urlencoded")) {
                for (int i = 0; i < FORM.length; i++) {
                    put(out, "form." + FORM[i], request.getParameter(FORM[i]));
                }
            } else {
                put(out, "body", new String(read(request.getInputStream()), "UTF-8"));
            }
        }
        return out.toString();
    }

    /**
     * Returns the user who logged in, or null. If the real user is an administrator, Spark's filter has already
     * replaced the user by the parameter doAs. The filter also treats a request without a user as one of an
     * administrator, so a name from doAs counts only if a user did log in.
     */
    static String user(HttpServletRequest request) {
        String user = request.getRemoteUser();
        if (user == null || request.getParameter("doAs") == null) {
            return user;
        }
        if (request instanceof HttpServletRequestWrapper) {
            ServletRequest inner = ((HttpServletRequestWrapper) request).getRequest();
            if (inner instanceof HttpServletRequest && ((HttpServletRequest) inner).getRemoteUser() != null) {
                return user;
            }
        }
        return null;
    }

    /**
     * A proxy that authenticates users (A13 in docs/invariants.md). Its header counts only on connections from the
     * proxy's addresses, and only if it occurs once: a proxy that appends its value to a client's value is not trusted.
     */
    static class Trust {
        private final String header;
        private final InetAddress[] proxies;

        /** Addresses are numeric and separated by commas. Without addresses, no header counts. */
        Trust(String header, String addresses) throws IOException {
            this.header = header;
            String[] texts = addresses.length() == 0 ? new String[0] : addresses.split(",");
            this.proxies = new InetAddress[texts.length];
            for (int i = 0; i < texts.length; i++) {
                this.proxies[i] = InetAddress.getByName(texts[i]);
            }
        }

        String user(HttpServletRequest request) throws IOException {
            if (proxies.length == 0) {
                return null;
            }
            InetAddress caller = InetAddress.getByName(request.getRemoteAddr());
            for (int i = 0; i < proxies.length; i++) {
                if (proxies[i].equals(caller)) {
                    Enumeration values = request.getHeaders(header);
                    String user = values.hasMoreElements() ? String.valueOf(values.nextElement()).trim() : "";
                    return user.length() == 0 || values.hasMoreElements() ? null : user;
                }
            }
            return null;
        }
    }

    static void put(StringBuilder out, String name, String value) throws IOException {
        if (value != null) {
            if (out.length() > 0) {
                out.append('&');
            }
            String bounded = value.length() > BODY_MAX ? value.substring(0, BODY_MAX) : value;
            out.append(name).append('=').append(URLEncoder.encode(bounded, "UTF-8"));
        }
    }

    static byte[] read(InputStream in) throws IOException {
        byte[] buffer = new byte[BODY_MAX];
        int length = 0;
        while (length < BODY_MAX) {
            int count = in.read(buffer, length, BODY_MAX - length);
            if (count < 0) {
                break;
            }
            length += count;
        }
        return java.util.Arrays.copyOf(buffer, length);
    }

    static class Tab extends SparkUITab {
        Tab(SparkUI parent, Function page, String key, Trust trust) {
            super(parent, PREFIX);
            attachPage(new Page(this, parent, page, key, trust));
        }

        /** The superclass calls this before it has set any field, so the name is a constant. */
        public String name() {
            return NAME;
        }
    }

    static class Page extends WebUIPage {
        private final Tab tab;
        private final SparkUI ui;
        private final Function page;
        private final String key;
        private final Trust trust;

        Page(Tab tab, SparkUI ui, Function page, String key, Trust trust) {
            super("");
            this.tab = tab;
            this.ui = ui;
            this.page = page;
            this.key = key;
            this.trust = trust;
        }

        public Seq render(HttpServletRequest request) {
            String html;
            try {
                html = String.valueOf(page.apply(facts(ui, request, key, trust)));
            } catch (Throwable failure) {
                html = "<div class=\"alert alert-danger\">The process behind this tab does not answer.</div>";
            }
            return framed(request, html);
        }

        /** Puts Spark's frame around our text. Newer Spark versions have more parameters here, all with defaults. */
        private Seq framed(HttpServletRequest request, String html) {
            try {
                Method[] methods = UIUtils.class.getMethods();
                for (int i = 0; i < methods.length; i++) {
                    if (methods[i].getName().equals("headerSparkPage")) {
                        Object[] values = new Object[methods[i].getParameterCount()];
                        values[0] = request;
                        values[1] = NAME;
                        values[2] = new Content(html);
                        values[3] = tab;
                        for (int k = 4; k < values.length; k++) {
                            Method byDefault = UIUtils.class.getMethod("headerSparkPage$default$" + (k + 1), new Class[0]);
                            values[k] = byDefault.invoke(null, new Object[0]);
                        }
                        return (Seq) methods[i].invoke(null, values);
                    }
                }
            } catch (Exception failure) {
                return (Seq) new Unparsed("<html><body>" + html + "</body></html>");
            }
            return (Seq) new Unparsed("<html><body>" + html + "</body></html>");
        }
    }

    static class Content extends AbstractFunction0 {
        private final String html;

        Content(String html) {
            this.html = html;
        }

        public Object apply() {
            return new Unparsed(html);
        }
    }

    static class Api extends HttpServlet {
        private final SparkUI ui;
        private final Function api;
        private final String key;
        private final Trust trust;

        Api(SparkUI ui, Function api, String key, Trust trust) {
            this.ui = ui;
            this.api = api;
            this.key = key;
            this.trust = trust;
        }

        protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
            String answer;
            try {
                answer = String.valueOf(api.apply(facts(ui, request, key, trust)));
            } catch (Throwable failure) {
                answer = "503\nContent-Type: text/plain; charset=utf-8\n\nThe process behind this tab does not answer.\n";
            }
            write(answer, response, "HEAD".equals(request.getMethod()));
        }

        private static void write(String answer, HttpServletResponse response, boolean isHead) throws IOException {
            int end = answer.indexOf("\n\n");
            String[] lines = answer.substring(0, end).split("\n");
            response.setStatus(Integer.parseInt(lines[0]));
            for (int i = 1; i < lines.length; i++) {
                int colon = lines[i].indexOf(": ");
                response.setHeader(lines[i].substring(0, colon), lines[i].substring(colon + 2));
            }
            byte[] body = answer.substring(end + 2).getBytes("UTF-8");
            response.setContentLength(body.length);
            if (!isHead) {
                response.getOutputStream().write(body);
            }
        }
    }
}
