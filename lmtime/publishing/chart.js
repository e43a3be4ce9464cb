/* Draws the charts of a page, and keeps each in step with its controls and with the theme. */
(function () {
  "use strict";

  const NARROW_PX = 600;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /* Vega's look, read from the page's own colours and font. */
  function look(narrow) {
    const ink = css("--lmtime-ink");
    const muted = css("--lmtime-muted");
    const font = getComputedStyle(document.body).fontFamily;
    const colours = [1, 2, 3, 4, 5, 6, 7, 8].map((i) => css(`--lmtime-colour-${i}`));
    const titles = { titleColor: ink, titleFontSize: 13, titleFontWeight: 500 };
    const labels = { labelColor: muted, labelFontSize: narrow ? 11 : 12 };
    return {
      font: font,
      background: "transparent",
      padding: 2,
      range: { category: colours },
      view: { stroke: null },
      axis: {
        ...titles,
        ...labels,
        titlePadding: 10,
        gridColor: css("--lmtime-grid"),
        domainColor: css("--lmtime-axis"),
        tickColor: css("--lmtime-axis"),
        labelPadding: 5,
        tickSize: 4,
      },
      legend: {
        ...titles,
        ...labels,
        orient: "top",
        columns: narrow ? 2 : undefined,
        symbolType: "square",
        symbolStrokeWidth: 0,
        labelLimit: narrow ? 130 : 240,
        titleLimit: 400,
      },
      header: { ...titles, ...labels },
      title: {
        color: ink,
        subtitleColor: muted,
        fontSize: 15,
        fontWeight: 600,
        anchor: "start",
        offset: 14,
      },
      style: { "guide-label": { font: font }, "guide-title": { font: font } },
      bar: { color: colours[0] },
      area: { color: colours[0] },
      line: { color: colours[0], strokeWidth: 2.5 },
      point: { color: colours[0], filled: true, size: 70 },
      circle: { color: colours[0] },
      rule: { color: muted },
      text: { color: ink, fontSize: 12 },
      tick: { color: colours[0] },
    };
  }

  /* On a narrow page the panels of a chart stand below one another. */
  function stacked(spec) {
    const { hconcat, facet, encoding, ...rest } = spec;
    if (hconcat) return { ...rest, vconcat: hconcat };
    if (facet && !facet.row) return { ...spec, facet: facet.column || facet, columns: 1 };
    if (encoding && encoding.column && !encoding.row) {
      const { column, ...others } = encoding;
      return { ...rest, encoding: { ...others, facet: { ...column, columns: 1 } } };
    }
    return spec.concat ? { ...spec, columns: 1 } : spec;
  }

  function read(control) {
    if (control.type === "checkbox") return control.checked;
    if (control.type === "range") return Number(control.value);
    return JSON.parse(control.value);
  }

  function mount(figure) {
    const box = figure.querySelector(".lmtime-view");
    const spec = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const signals = spec.usermeta.lmtime.signals;
    const description = figure.querySelector("figcaption").textContent;
    const controls = [...figure.querySelectorAll("[data-param]")];
    let view = null;
    let width = 0; // of the box when it was last drawn
    let fluid = []; // signals that follow the width of the box
    let queue = Promise.resolve(); // one drawing ends before the next begins

    /* Write what a signal says in words: beside its control, or as the sentence. */
    function tell(name, text) {
      if (name === "lmtime_sentence") {
        figure.querySelector(".lmtime-sentence").textContent = text;
        return;
      }
      const control = controls.find((one) => `lmtime_show_${one.dataset.param}` === name);
      const value = control.closest(".lmtime-control").querySelector(".lmtime-value");
      if (value) value.textContent = text;
      if (control.type === "range") control.setAttribute("aria-valuetext", text);
    }

    async function draw() {
      const values = new Map(controls.map((one) => [one.dataset.param, read(one)]));
      const params = (spec.params || []).map((param) =>
        values.has(param.name) ? { ...param, value: values.get(param.name) } : param
      );
      width = box.clientWidth;
      const narrow = width < NARROW_PX;
      box.style.minHeight = `${box.clientHeight}px`; // the page must not jump meanwhile
      if (view) view.finalize();
      const drawing = await window.vegaEmbed(box, { ...(narrow ? stacked(spec) : spec), params }, {
        mode: "vega-lite",
        renderer: "svg",
        actions: false,
        defaultStyle: false,
        config: look(narrow),
        tooltip: { theme: document.documentElement.dataset.theme === "dark" ? "dark" : "light" },
        patch: (vega) => {
          const own = vega.signals || [];
          const told = Object.entries(signals).map(([name, update]) => ({ name, update }));
          fluid = own.filter((one) => `${one.init}`.includes("containerSize")).map((one) => one.name);
          return { ...vega, signals: [...own, ...told] };
        },
      });
      view = drawing.view;
      box.style.minHeight = "";
      for (const name of ["role", "aria-label", "aria-roledescription"]) box.removeAttribute(name);
      const svg = box.querySelector("svg");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", description);
      for (const name of Object.keys(signals)) {
        tell(name, view.signal(name));
        view.addSignalListener(name, tell);
      }
      await fit();
    }

    /* Vega makes the panels of a composed chart as wide as the box and forgets their axes. */
    async function fit() {
      const over = box.querySelector("svg").width.baseVal.value - box.clientWidth;
      if (over <= 0 || !fluid.length) return;
      const panels = spec.hconcat && width >= NARROW_PX ? spec.hconcat.length : 1;
      for (const name of fluid) view.signal(name, view.signal(name) - over / panels);
      await view.runAsync();
    }

    function redraw() {
      queue = queue.then(draw).catch((error) => {
        box.textContent = "This chart could not be drawn. Its data stands in the table below.";
        console.error(error);
      });
    }

    for (const control of controls) {
      control.addEventListener("input", () => {
        if (view) view.signal(control.dataset.param, read(control)).runAsync();
      });
    }
    for (const hidden of figure.querySelectorAll(".lmtime-controls")) hidden.hidden = false;

    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    new ResizeObserver(() => {
      if (!view || !box.clientWidth || box.clientWidth === width) return;
      const crossed = width < NARROW_PX !== box.clientWidth < NARROW_PX || width === 0;
      width = box.clientWidth;
      if (crossed) return redraw();
      window.dispatchEvent(new Event("resize")); // what Vega listens to
      view.runAsync().then(fit);
    }).observe(box);
    redraw();
  }

  for (const figure of document.querySelectorAll("figure.lmtime-chart")) mount(figure);
})();
