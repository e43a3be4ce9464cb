"""From notebooks to pages: charts that need no server, mathematics that needs no script.

renderer     the Altair renderer of every notebook                   altair
vega_eval    Vega expressions evaluated with no browser              vl-convert
tables       the data behind a chart, as it stands when drawn        vl-convert
controls     a chart's parameters as labelled inputs                 standard library
figure       a chart's specification to the HTML of its figure       vl-convert
mathml       LaTeX to MathML                                         latex2mathml
sphinx_ext   what Sphinx and MyST-NB load                            sphinx
notebooks    run a lab with checked parameters                       papermill
build        build the book, say what it shows, serve it             standard library
"""
